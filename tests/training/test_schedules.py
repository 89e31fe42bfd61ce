"""Every schedule that keeps the backward whole, and odd ones of a user, train like 1F1B."""

import pytest
import torch
from checkpoints import read_tensors, start_from

from hanayo_megatron.schedule import ScheduleSpec, build_schedule, schedule_names
from hanayo_megatron.schedule.csv_file import write_schedule
from megatron_runs import tiny_gpt

pytestmark = pytest.mark.megatron

PP, MICROBATCHES, STEPS, LAYERS = 4, 6, 5, 16
ODD = ("test-reversed", "test-shuffled", "test-non-neighbours", "test-moved")
CHIMERA = ("chimera", "chimera-doubling")


def splits_backward(name):
    return build_schedule(name, ScheduleSpec(pp=PP, microbatches=16)).splits_backward


WHOLE = [n for n in schedule_names() if not n.startswith("test-") and not splits_backward(n)]
SPLIT = [n for n in schedule_names() if not n.startswith("test-") and splits_backward(n)]


@pytest.fixture(scope="module")
def train(launcher, plain_checkpoint, tmp_path_factory):
    def run(*flags):
        folder = tmp_path_factory.mktemp("run")
        arguments = tiny_gpt(
            *("--pipeline-model-parallel-size", str(PP), "--clip-grad", "0", "--eval-iters", "1"),
            *("--save", str(folder), "--save-interval", str(STEPS)),
            *start_from(plain_checkpoint(layers=LAYERS)),
            *flags,
            layers=LAYERS,
            microbatches=MICROBATCHES,
            iterations=STEPS,
        )
        run = launcher.run(arguments, ranks=PP).check()
        assert len(run.losses) == STEPS
        return run, read_tensors(folder, iteration=STEPS)

    return run


@pytest.fixture(scope="module")
def plain(train):
    return train()


def test_the_library_is_whole_or_split():
    assert {"gpipe", "1f1b", "interleaved", "breadth-first", "eager-1f1b", "hanayo"} <= set(WHOLE)
    assert {"zb-h1", "zb-h2", "zb-v", "v-half", "v-min", "dualpipe-v", "hanayo-zb"} == set(SPLIT)


@pytest.mark.parametrize("name", [name for name in WHOLE if name not in CHIMERA])
def test_library_schedules_train_bit_by_bit_like_1f1b(train, plain, name):
    """All of them add microbatches to the gradients in ascending order, as 1F1B does."""
    ours, our_tensors = train("--pipeline-schedule", name)
    expected, tensors = plain
    assert (ours.losses, ours.grad_norms) == (expected.losses, expected.grad_norms)
    assert ours.validations == expected.validations
    assert not [n for n, tensor in tensors.items() if not torch.equal(our_tensors[n], tensor)]


@pytest.mark.parametrize("name", ODD)
def test_odd_user_schedules_train_like_1f1b(train, plain, name):
    """Other backward orders sum the same gradients in another order: equal up to rounding."""
    ours, our_tensors = train(
        *("--pipeline-schedule", name, "--pipeline-schedule-module", "training.odd_schedules")
    )
    expect_equal_up_to_rounding(ours, our_tensors, *plain)


def test_a_schedule_from_a_file_trains_like_1f1b(train, plain, tmp_path):
    spec = ScheduleSpec(pp=PP, microbatches=MICROBATCHES, waves=2)
    path = tmp_path / "waves.csv"
    write_schedule(build_schedule("hanayo", spec), path)
    ours, our_tensors = train("--pipeline-schedule", str(path))
    assert ours.losses == plain[0].losses
    assert not [n for n, t in plain[1].items() if not torch.equal(our_tensors[n], t)]


def expect_equal_up_to_rounding(ours, our_tensors, expected, tensors):
    assert ours.losses == pytest.approx(expected.losses, rel=1e-6)
    assert ours.grad_norms == pytest.approx(expected.grad_norms, abs=1.5e-3)
    assert our_tensors.keys() == tensors.keys()
    for name, tensor in tensors.items():
        torch.testing.assert_close(
            our_tensors[name], tensor, rtol=1e-4, atol=2e-6, msg=lambda m, n=name: f"{n}: {m}"
        )


@pytest.mark.parametrize("name", SPLIT)
def test_split_backwards_are_refused_with_that_reason(launcher, name):
    flags = ("--pipeline-model-parallel-size", "2", "--pipeline-schedule", name)
    run = launcher.run(tiny_gpt(*flags, microbatches=8), ranks=2, timeout=60)
    assert run.exit_codes == (1, 1)
    assert all("splits the backward" in text for text in run.stderr)
