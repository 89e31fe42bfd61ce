"""What a schedule costs: exact simulation, closed forms, bounds. Needs no torch, no Megatron."""
