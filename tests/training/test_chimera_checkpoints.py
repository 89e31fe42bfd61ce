"""Checkpoints of two copies have every weight once, and go on under any other schedule."""

import pytest
import torch
from checkpoints import read_tensors, start_from

from megatron_runs import tiny_gpt

pytestmark = pytest.mark.megatron

LAYERS = 8
UNTIED = ("--untie-embeddings-and-output-weights",)
SHARDED = ("--use-distributed-optimizer", "--dist-ckpt-optim-fully-reshardable")
PLAIN_2 = (2, 1, ())
PLAIN_4 = (4, 1, ())
HANAYO = (2, 1, ("--pipeline-schedule", "hanayo", "--num-waves", "2"))
CHIMERA = (2, 1, ("--pipeline-schedule", "chimera"))
CHIMERA_4 = (4, 1, ("--pipeline-schedule", "chimera-doubling"))
CHIMERA_DP = (2, 2, ("--pipeline-schedule", "chimera"))


def train(launcher, folder, kind, steps, *flags):
    pp, dp, schedule = kind
    arguments = tiny_gpt(
        *("--pipeline-model-parallel-size", str(pp)),
        *("--save", str(folder), "--save-interval", "3", "--exit-interval", str(steps)),
        *schedule,
        *flags,
        layers=LAYERS,
        iterations=6,
    )
    module = "hanayo_megatron.pretrain_gpt"
    if "--use-distributed-optimizer" in flags:
        module = "training.sharded_resume"
    return launcher.run(arguments, ranks=pp * dp, module=module).check()


@pytest.mark.parametrize(
    ("before", "after", "flags"),
    [
        pytest.param(CHIMERA, PLAIN_4, (), id="chimera-to-plain"),
        pytest.param(PLAIN_4, CHIMERA_DP, SHARDED, id="plain-to-sharded-chimera"),
        pytest.param(CHIMERA_DP, HANAYO, (*SHARDED, *UNTIED), id="sharded-chimera-to-hanayo"),
        pytest.param(HANAYO, CHIMERA_4, (), id="hanayo-to-doubling", marks=pytest.mark.slow),
        pytest.param(CHIMERA_4, CHIMERA, SHARDED, id="between-sizes", marks=pytest.mark.slow),
    ],
)
def test_a_run_continues_under_another_schedule(
    launcher, plain_checkpoint, tmp_path, before, after, flags
):
    """3 steps + 3 steps elsewhere, with Adam's state, equal 6 steps of plain Megatron."""
    model = tuple(flag for flag in flags if flag in UNTIED)
    start = start_from(plain_checkpoint(*model, layers=LAYERS))
    straight, moved = tmp_path / "straight", tmp_path / "moved"
    expected = train(launcher, straight, PLAIN_2, 6, *start, *flags)
    first = train(launcher, moved, before, 3, *start, *flags)
    second = train(launcher, moved, after, 6, "--load", str(moved), *flags)

    norms = first.grad_norms + second.grad_norms
    assert norms == pytest.approx(expected.grad_norms, rel=0, abs=1.01e-3)
    for step in (3, 6):
        ours, theirs = read_tensors(moved, iteration=step), read_tensors(straight, iteration=step)
        assert ours.keys() == theirs.keys()
        assert any("exp_avg_sq" in name for name in theirs)
        for name, tensor in theirs.items():
            torch.testing.assert_close(
                ours[name], tensor, rtol=1e-4, atol=2e-6, msg=lambda m, n=name: f"{n}: {m}"
            )
    assert stored_bytes(moved) == pytest.approx(stored_bytes(straight), rel=0.1)


def stored_bytes(folder):
    """Bytes of all tensor files."""
    return sum(path.stat().st_size for path in folder.rglob("*.distcp"))


def test_optimizer_shards_are_loaded_as_they_were(launcher, tmp_path):
    """In Megatron's default format, which only the same pipeline can read."""
    flags = ("--use-distributed-optimizer", "--overlap-grad-reduce")
    straight, resumed = tmp_path / "straight", tmp_path / "resumed"
    expected = train(launcher, straight, CHIMERA_DP, 6, *flags)
    train(launcher, resumed, CHIMERA_DP, 3, *flags)
    second = train(launcher, resumed, CHIMERA_DP, 6, "--load", str(resumed), *flags)
    assert second.grad_norms == expected.grad_norms[3:]
    ours, theirs = read_tensors(resumed, iteration=6), read_tensors(straight, iteration=6)
    assert ours.keys() == theirs.keys()
    assert not [name for name, tensor in theirs.items() if not torch.equal(ours[name], tensor)]


def test_copies_that_differ_after_loading_are_refused(launcher, plain_checkpoint):
    pp, _, schedule = CHIMERA
    run = launcher.run(
        tiny_gpt(
            *("--pipeline-model-parallel-size", str(pp)),
            *start_from(plain_checkpoint(layers=LAYERS)),
            *schedule,
            layers=LAYERS,
        ),
        ranks=pp,
        module="training.damaged_load",
        timeout=60,
    )
    assert not run.timed_out
    assert run.exit_codes == (1, 1), run.report()
    for text in run.stderr:
        assert "two copies of module.decoder.layers.0.mlp.linear_fc1.weight" in text
        assert "ranks 0, 1" in text
        assert "Traceback" not in text
