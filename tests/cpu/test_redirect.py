"""torch.cuda, tensors and streams where the CPU stands in for the GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from hanayo_megatron.cpu import compilation, device, tensors
from hanayo_megatron.cpu.defaults import missing_defaults
from megatron_runs.launcher import python_environment


def redirected(check: Callable[[], None]) -> Callable[[], None]:
    """Run a test in a new Python: what it redirects cannot be taken back."""

    def child() -> None:
        os.environ["LOCAL_WORLD_SIZE"] = "4"
        device.redirect_device()
        tensors.redirect_tensors()
        compilation.disable_torch_compile()
        check()

    def test() -> None:
        here = Path(__file__)
        code = f"import {here.stem}; {here.stem}.{check.__name__}.child()"
        environment = python_environment()
        environment["PYTHONPATH"] += os.pathsep + str(here.parent)
        run = subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert run.returncode == 0, run.stderr

    test.__name__, test.__doc__ = check.__name__, check.__doc__
    test.child = child
    return test


@redirected
def test_factories_put_tensors_of_every_cuda_device_on_the_cpu():
    like = torch.ones(2)
    for name in ("cuda", "cuda:3", torch.device("cuda", 1), 0, torch.cuda.current_device()):
        made = [
            torch.tensor([1.0], device=name),
            torch.zeros(2, device=name),
            torch.empty((2, 3), dtype=torch.int, device=name),
            torch.arange(3, device=name),
            torch.zeros_like(like, device=name),
            like.new_empty(3, device=name),
        ]
        assert [tensor.device.type for tensor in made] == ["cpu"] * len(made)


@redirected
def test_other_devices_and_other_arguments_are_kept():
    assert torch.empty(2, device="meta").device.type == "meta"
    assert torch.zeros(2, 3, dtype=torch.int).shape == (2, 3)
    assert torch.ones(2).to("meta").device.type == "meta"
    assert torch.ones(2).to(torch.float64).dtype is torch.float64
    assert torch.ones(2).to(torch.ones(1, dtype=torch.int)).dtype is torch.int


@redirected
def test_moving_to_a_gpu_leaves_a_tensor_where_it_is():
    tensor = torch.ones(2)
    assert tensor.cuda(non_blocking=True) is tensor
    assert tensor.to("cuda") is tensor
    assert tensor.to(torch.cuda.current_device()) is tensor
    assert tensor.to(device="cuda", dtype=torch.float64).dtype is torch.float64
    assert tensor.pin_memory() is tensor
    module = torch.nn.Linear(2, 2)
    assert module.cuda(0) is module
    assert module.to("cuda").weight.device.type == "cpu"
    assert module.to_empty(device="cuda").weight.device.type == "cpu"


@redirected
def test_type_names_are_those_of_cuda_tensors():
    assert torch.ones(1).type() == "torch.cuda.FloatTensor"
    assert torch.ones(1, dtype=torch.bfloat16).type() == "torch.cuda.BFloat16Tensor"
    assert torch.ones(1).type(torch.float16).dtype is torch.float16
    assert torch.ones(1).type("torch.cuda.HalfTensor").dtype is torch.float16
    assert isinstance(torch.ones(1), torch.cuda.FloatTensor)


@redirected
def test_random_state_of_the_gpu_is_that_of_the_cpu():
    torch.cuda.manual_seed(3)
    state = torch.cuda.get_rng_state()
    first = torch.rand(4)
    torch.cuda.set_rng_state(state)
    assert torch.equal(torch.rand(4), first)
    torch.manual_seed(3)
    assert torch.equal(torch.rand(4), first)


@redirected
def test_there_is_one_device_for_each_local_process():
    assert torch.cuda.is_available()
    assert torch.cuda.device_count() == 4
    assert torch.cuda.get_device_properties(0).total_memory == torch.cuda.mem_get_info()[1]
    assert torch.cuda.memory_allocated() > 10_000_000
    assert torch.cuda.max_memory_allocated() >= torch.cuda.memory_allocated() * 0.9


@redirected
def test_streams_and_events_order_nothing_and_measure_wall_time():
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    side = torch.cuda.Stream()
    start.record()
    with torch.cuda.stream(side):
        side.wait_stream(torch.cuda.current_stream())
        torch.ones(3).record_stream(side)
    end.record(side)
    torch.cuda.synchronize()
    assert 0 < start.elapsed_time(end) < 10_000


@redirected
def test_optimizers_and_pinned_data_loaders_work():
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.AdamW([weight], lr=0.1)
    for batch in torch.utils.data.DataLoader([1.0, 2.0], pin_memory=True, num_workers=1):
        (weight * batch.cuda()).sum().backward()
    optimizer.step()
    assert weight.max() < 1


@redirected
def test_nothing_is_compiled():
    @torch.compile
    def bare(x):
        return x + 1

    @torch.compile(dynamic=True)
    def called(x):
        return x + 2

    assert (bare(1), called(1)) == (2, 3)
    assert "torch._inductor" not in sys.modules


def test_with_a_gpu_nothing_is_touched():
    code = """
import torch
torch.cuda.is_available = lambda: True     # a GPU, as far as anybody can see
owners = (torch, torch.cuda, torch.cuda.random, torch.accelerator, torch.Tensor, torch.nn.Module,
          torch.distributed, torch.distributed.distributed_c10d)
before = [dict(vars(owner)) for owner in owners]
from hanayo_megatron import cpu
assert cpu.install(["--lr", "1"]) == ["--lr", "1"]
assert not cpu.is_active()
for owner, names in zip(owners, before):
    assert all(vars(owner)[name] is value for name, value in names.items()), owner
"""
    subprocess.run([sys.executable, "-c", code], env=python_environment(), check=True, timeout=60)


def test_the_flag_asks_for_the_cpu_where_a_gpu_is():
    code = """
import torch
torch.cuda.is_available = lambda: True
from hanayo_megatron import cpu
argv = cpu.install(["--cpu", "--lr", "1"])
assert cpu.is_active()
assert argv[-2:] == ["--lr", "1"] and "--cpu" not in argv and "--transformer-impl" in argv
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=python_environment(),
        check=True,
        timeout=60,
        capture_output=True,
        text=True,
    )
    told = [line for line in done.stderr.splitlines() if "Training on CPUs" in line]
    assert len(told) == 1
    assert "--transformer-impl local" in told[0]


def test_after_megatron_it_is_too_late():
    code = """
import sys, types
sys.modules["megatron.core"] = types.ModuleType("megatron.core")
from hanayo_megatron import cpu
cpu.install(["--cpu"])
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=python_environment(),
        timeout=60,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "after Megatron was imported" in done.stderr


def test_importing_the_layer_imports_no_torch():
    code = "import sys, hanayo_megatron.cpu; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], env=python_environment(), check=True, timeout=60)


def test_defaults_are_not_added_where_the_user_chose():
    added = missing_defaults(
        ["--transformer-impl", "transformer_engine", "--attention-backend=auto"]
    )
    assert "--transformer-impl" not in added
    assert "--attention-backend" not in added
    assert added[added.index("--distributed-backend") + 1] == "gloo"
    assert missing_defaults(missing_defaults([])) == []
