"""Wave, Chimera, zero-bubble and user-written pipeline schedules for Megatron-Core."""

__version__ = "0.1.0"
