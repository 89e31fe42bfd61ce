"""Executes action lists with torch. Knows nothing of Megatron."""
