"""Lets `torch.cuda` answer for the CPU: one device per process of this machine."""

from __future__ import annotations

import os
import resource
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from hanayo_megatron.cpu import streams

# Blackwell: for older ones Megatron insists on settings of CUDA's connections.
_COMPUTE_CAPABILITY = (10, 0)
_TYPED_TENSORS = ("Float", "Double", "Half", "BFloat16", "Int", "Long", "Short", "Byte", "Bool")


def redirect_device() -> None:
    """Replace what Megatron asks of `torch.cuda`; everything else stays as it is.

    Random state keeps to torch's own functions, which find the CPU's generator in the place of
    every device's. Memory figures are those of the process.
    """
    for name, answer in _answers().items():
        setattr(torch.cuda, name, answer)
    torch.cuda.random.current_device = _current_device
    torch.cuda.random.device_count = _device_count
    for kind in _TYPED_TENSORS:
        setattr(torch.cuda, f"{kind}Tensor", getattr(torch, f"{kind}Tensor"))
    # torch itself asks here, and would then pin memory and look for a graph capture.
    torch.accelerator.is_available = _no_accelerator_is_available
    torch.accelerator.current_accelerator = _current_accelerator
    torch.cuda._initialized = True
    torch.cuda.default_generators = _HostGenerators()


def is_redirected() -> bool:
    """Whether `redirect_device` was called in this process."""
    return torch.cuda.is_available is _is_available


class _HostGenerators(Sequence):
    """`torch.cuda.default_generators`, however many devices there are."""

    def __len__(self) -> int:
        return _device_count()

    def __getitem__(self, index: int) -> torch.Generator:
        return torch.default_generator


def _answers() -> dict[str, Any]:
    return {
        "is_available": _is_available,
        "device_count": _device_count,
        "current_device": _current_device,
        "set_device": _set_device,
        "synchronize": _synchronize,
        "get_device_name": _device_name,
        "get_device_capability": _device_capability,
        "get_device_properties": _device_properties,
        "is_bf16_supported": _is_bf16_supported,
        "is_current_stream_capturing": _is_capturing,
        "empty_cache": _empty_cache,
        "reset_peak_memory_stats": _reset_peak_memory_stats,
        "memory_stats": _memory_stats,
        "memory_allocated": _memory_allocated,
        "max_memory_allocated": _max_memory_allocated,
        "memory_reserved": _memory_reserved,
        "max_memory_reserved": _max_memory_reserved,
        "device_memory_used": _device_memory_used,
        "mem_get_info": _mem_get_info,
        "Stream": streams.Stream,
        "Event": streams.Event,
        "stream": streams.stream_context,
        "set_stream": _set_stream,
        "current_stream": streams.current_stream,
        "default_stream": streams.default_stream,
    }


def _is_available() -> bool:
    return True


def _no_accelerator_is_available() -> bool:
    return False


def _current_accelerator(check_available: bool = False) -> None:
    return None


def _device_count() -> int:
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def _current_device() -> int:
    return 0


def _set_device(device: Any) -> None:
    pass


def _synchronize(device: Any = None) -> None:
    pass


def _device_name(device: Any = None) -> str:
    return "CPU"


def _device_capability(device: Any = None) -> tuple[int, int]:
    return _COMPUTE_CAPABILITY


def _device_properties(device: Any = None) -> types.SimpleNamespace:
    major, minor = _COMPUTE_CAPABILITY
    return types.SimpleNamespace(
        name=_device_name(),
        major=major,
        minor=minor,
        total_memory=_mem_get_info()[1],
        multi_processor_count=os.cpu_count() or 1,
    )


def _is_bf16_supported(including_emulation: bool = True) -> bool:
    return True


def _is_capturing() -> bool:
    return False


def _set_stream(stream: streams.Stream) -> None:
    pass


def _empty_cache() -> None:
    pass


def _reset_peak_memory_stats(device: Any = None) -> None:
    pass


def _memory_allocated(device: Any = None) -> int:
    resident_pages = int(Path("/proc/self/statm").read_text().split()[1])
    return resident_pages * resource.getpagesize()


def _max_memory_allocated(device: Any = None) -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return max(peak, _memory_allocated())


def _memory_reserved(device: Any = None) -> int:
    return _memory_allocated()


def _max_memory_reserved(device: Any = None) -> int:
    return _max_memory_allocated()


def _device_memory_used(device: Any = None) -> int:
    free, total = _mem_get_info()
    return total - free


def _mem_get_info(device: Any = None) -> tuple[int, int]:
    page = resource.getpagesize()
    return os.sysconf("SC_AVPHYS_PAGES") * page, os.sysconf("SC_PHYS_PAGES") * page


def _memory_stats(device: Any = None) -> dict[str, int]:
    current, peak = _memory_allocated(), _max_memory_allocated()
    return {
        "allocated_bytes.all.current": current,
        "allocated_bytes.all.peak": peak,
        "reserved_bytes.all.current": current,
        "reserved_bytes.all.peak": peak,
        "allocation.all.current": 0,
    }
