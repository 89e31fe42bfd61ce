"""A job that cannot go on ends on every rank within 20 s, with a text that names the cause."""

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from megatron_runs import tiny_gpt
from megatron_runs.launcher import python_environment

pytestmark = pytest.mark.megatron

LIMIT = 20


def arguments(*more):
    return tiny_gpt(
        *("--pipeline-model-parallel-size", "4", "--pipeline-schedule", "hanayo"),
        *("--num-waves", "1", *more),
        layers=16,
        iterations=5,
    )


@pytest.mark.parametrize("dying", [0, 2])
def test_under_torchrun_all_others_name_a_killed_rank_before_they_are_ended(tmp_path, dying):
    """torchrun sends SIGTERM to them a moment after the death."""
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
        *("--local-addr", "127.0.0.1", "--nproc-per-node", "4", "--redirects", "3"),
        *(
            "--log-dir",
            str(tmp_path),
            "-m",
            "hanayo_megatron.run",
            str(Path(__file__).with_name("dying_rank.py")),
        ),
        *arguments(),
    ]
    environment = {
        **python_environment(),
        **{"DYING_RANK": str(dying), "HOW": "kill", "HANAYO_CPU": "1"},
    }
    started = time.monotonic()
    done = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 1
    texts = {path.parent.name: path.read_text() for path in tmp_path.rglob("stderr.log")}
    assert sorted(texts) == ["0", "1", "2", "3"]
    for rank, text in texts.items():
        if rank != str(dying):
            told = [line for line in text.splitlines() if f"job ended on rank {rank}: " in line]
            assert len(told) == 1, f"{rank}: {text[-2000:]}"
            assert f"rank {dying} is gone" in told[0]
    assert time.monotonic() - started < 60


@pytest.mark.parametrize("dying", [0, 2])
def test_a_killed_rank_is_named(launcher, dying):
    run = launcher.run(
        arguments(),
        ranks=4,
        module="training.dying_rank",
        environment={"DYING_RANK": str(dying), "HOW": "kill"},
        timeout=90,
        grace=LIMIT,
    )
    assert not run.timed_out
    expected = [1] * 4
    expected[dying] = -signal.SIGKILL
    assert list(run.exit_codes) == expected, run.report()
    for rank, text in enumerate(run.stderr):
        if rank != dying:
            assert f"job ended on rank {rank}" in text, run.report()
            assert f"rank {dying}" in text.split(f"job ended on rank {rank}: ")[1].splitlines()[0]


def test_a_hang_is_explained(launcher):
    run = launcher.run(
        arguments("--pipeline-watchdog-seconds", "5"),
        ranks=4,
        module="training.dying_rank",
        environment={"DYING_RANK": "1", "HOW": "hang"},
        timeout=90,
        grace=LIMIT,
    )
    assert not run.timed_out
    assert run.exit_codes == (1,) * 4, run.report()
    for text in run.stderr:
        assert "has been in one place for" in text
        assert re.search(r"rank 1, \d+\.\d s ago: step 1, operation", text)
        assert "from stage 1 on rank 1 to stage 2 on rank 2" in text


def test_a_failing_rank_is_named_with_its_error(launcher):
    run = launcher.run(
        arguments(),
        ranks=4,
        module="training.dying_rank",
        environment={"DYING_RANK": "3", "HOW": "raise"},
        timeout=90,
        grace=LIMIT,
    )
    assert not run.timed_out
    assert run.exit_codes == (1,) * 4, run.report()
    assert "Traceback" in run.stderr[3]
    for text in run.stderr[:3]:
        assert "rank 3 failed: ValueError: a bug in the user's code" in text


@pytest.mark.parametrize(
    ("how", "exit_code", "words"),
    [
        ("exit", 3, "in the middle of step 1, operation"),
        ("return", 0, "before step 2; rank "),
    ],
)
def test_a_rank_that_ends_by_itself_is_named(launcher, how, exit_code, words):
    run = launcher.run(
        arguments(),
        ranks=4,
        module="training.dying_rank",
        environment={"DYING_RANK": "2", "HOW": how},
        timeout=60,
        grace=LIMIT,
    )
    assert not run.timed_out
    assert run.exit_codes == (1, 1, exit_code, 1), run.report()
    for rank in (0, 1, 3):
        reason = run.stderr[rank].partition(f"job ended on rank {rank}: ")[2]
        assert reason.startswith("rank 2 has ended by itself"), run.report()
        assert words in reason.splitlines()[0]


@pytest.mark.parametrize(
    ("last", "ending"),
    [(0, ()), (1, ("--exit-interval", "3")), (2, ("--eval-interval", "5", "--eval-iters", "2"))],
)
def test_ranks_that_end_in_good_order_far_apart_are_left_alone(launcher, last, ending):
    run = launcher.run(
        arguments(*ending),
        ranks=4,
        module="training.dying_rank",
        environment={"DYING_RANK": str(last), "HOW": "linger"},
        timeout=60,
    ).check()
    assert len(run.iterations) == (3 if "--exit-interval" in ending else 5)
    assert "job ended" not in "".join(run.stderr)


@pytest.mark.parametrize(
    ("flag", "value", "words"),
    [
        ("--num-waves", "2", "--num-waves: 1 on ranks 0, 1, 3; 2 on rank 2"),
        ("--pipeline-schedule", "gpipe", "--pipeline-schedule: hanayo on ranks 0, 1, 3"),
        ("--seq-length", "16", "--seq-length: 32 on ranks 0, 1, 3; 16 on rank 2"),
    ],
)
def test_other_flags_on_one_rank(launcher, flag, value, words):
    schedule = () if flag == "--pipeline-schedule" else ("--num-waves", "1")
    run = launcher.run(
        tiny_gpt(
            *("--pipeline-model-parallel-size", "4", "--pipeline-schedule", "hanayo", *schedule),
            layers=16,
        ),
        ranks=4,
        module="training.unequal_flags",
        environment={"UNEQUAL": f"2 {flag} {value}"},
        timeout=60,
        grace=LIMIT,
    )
    assert not run.timed_out
    assert run.exit_codes == (1,) * 4, run.report()
    for text in run.stderr:
        assert words in text
        assert "Traceback" not in text
