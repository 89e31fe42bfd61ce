"""All that knows Megatron: flags, layout, hooks and the drop-in forward_backward function."""

from hanayo_megatron.megatron.install import install

__all__ = ["install"]
