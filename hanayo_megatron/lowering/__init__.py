"""From a schedule to one action list per rank. Needs neither torch nor Megatron."""
