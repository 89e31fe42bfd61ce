"""The pure parts start at once: neither torch nor Megatron is imported."""

import subprocess
import sys

import pytest

MODULES = [
    "hanayo_megatron",
    "hanayo_megatron.schedule",
    "hanayo_megatron.schedule.library",
    "hanayo_megatron.lowering.lower",
    "hanayo_megatron.simulate.simulate",
    "hanayo_megatron.cli",
    "hanayo_megatron.flags",
]


@pytest.mark.parametrize("module", MODULES)
def test_import_needs_neither_torch_nor_megatron(module):
    heavy = ("torch", "megatron", "numpy", "matplotlib")
    code = f"import sys, {module}; print([m for m in {heavy} if m in sys.modules])"
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert found.stdout.strip() == "[]"


def test_import_takes_less_than_half_a_second():
    """Of processor time, which does not depend on what else the machine does."""
    code = (
        "import hanayo_megatron.lowering.lower, hanayo_megatron.schedule.library\n"
        "import time; print(time.process_time())"
    )
    took = [
        float(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)
        for _ in range(3)
    ]
    assert min(took) < 0.5
