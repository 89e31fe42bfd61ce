"""Real Megatron trainings of several CPU processes, for tests.

    run = launcher.run(tiny_gpt("--pipeline-model-parallel-size", "2"), ranks=2)
    assert run.check().losses == ...

`Launcher` keeps one process that has torch and Megatron imported; a run's ranks are forked from
it. `launch_fresh` starts every rank as a new Python, as torchrun would.
"""

from megatron_runs.fresh import launch_fresh
from megatron_runs.launcher import Launcher
from megatron_runs.run import Run
from megatron_runs.tiny import tiny_gpt

__all__ = ["Launcher", "Run", "launch_fresh", "tiny_gpt"]
