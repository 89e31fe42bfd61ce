"""What one training of several ranks left behind."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

_ITERATION = re.compile(r"^ \[[^]]*\] iteration +(?P<iteration>\d+)/ *\d+ \|(?P<fields>.*)$", re.M)
_VALIDATION = re.compile(
    r"^ validation loss at iteration (?P<iteration>\d+)(?P<on> on [^|]*?)? \| (?P<fields>.*)$", re.M
)
_FIELD = re.compile(r"(?P<name>[^|:]+): +(?P<value>\S+) +\|")
_TAIL_LINES = 30


@dataclass(frozen=True)
class Run:
    """One finished training.

    Attributes:
        exit_codes: of each rank; negative numbers are signals (-9: killed).
        stdout, stderr: the text that each rank wrote.
        seconds: wall time from the request to the last rank's end.
        timed_out: the ranks were killed at the time limit. Their stacks are in `stderr`.
    """

    exit_codes: tuple[int, ...]
    stdout: tuple[str, ...]
    stderr: tuple[str, ...]
    seconds: float
    timed_out: bool

    @property
    def succeeded(self) -> bool:
        return not self.timed_out and not any(self.exit_codes)

    @cached_property
    def iterations(self) -> list[dict[str, float]]:
        """Megatron's line of every iteration: {"iteration": 1, "lm loss": 5.5, ...}.

        The losses of a run's second line are Megatron's mean over its first two iterations, also
        where a run continues from a checkpoint.
        """
        return [_values(match) for text in self.stdout for match in _ITERATION.finditer(text)]

    @cached_property
    def validations(self) -> list[dict[str, float]]:
        """Megatron's validation lines: {"iteration": 1, "lm loss value": 5.5, ...}."""
        return [_values(match) for text in self.stdout for match in _VALIDATION.finditer(text)]

    @property
    def losses(self) -> list[float]:
        return [iteration["lm loss"] for iteration in self.iterations]

    @property
    def grad_norms(self) -> list[float]:
        return [iteration["grad norm"] for iteration in self.iterations]

    @property
    def validation_losses(self) -> list[float]:
        return [validation["lm loss value"] for validation in self.validations]

    def check(self) -> Run:
        """This run, or AssertionError with the end of every rank's output if it failed."""
        if not self.succeeded:
            raise AssertionError(self.report())
        return self

    def report(self) -> str:
        """How each rank ended, with the last lines it wrote."""
        parts = [f"timed out: {self.timed_out}, exit codes: {self.exit_codes}"]
        for rank, (out, err) in enumerate(zip(self.stdout, self.stderr, strict=True)):
            parts += [
                f"--- rank {rank}, stdout",
                _tail(out),
                f"--- rank {rank}, stderr",
                _tail(err),
            ]
        return "\n".join(parts)


def read_run(folder: Path, exit_codes: list[int], *, seconds: float, timed_out: bool) -> Run:
    """The run whose ranks wrote to `output_paths` of `folder`."""
    paths = [output_paths(folder, rank) for rank in range(len(exit_codes))]
    return Run(
        exit_codes=tuple(exit_codes),
        stdout=tuple(out.read_text(errors="replace") for out, _ in paths),
        stderr=tuple(err.read_text(errors="replace") for _, err in paths),
        seconds=seconds,
        timed_out=timed_out,
    )


def output_paths(folder: Path, rank: int) -> tuple[Path, Path]:
    """The files for a rank's stdout and stderr."""
    return folder / f"{rank}.out", folder / f"{rank}.err"


def _values(match: re.Match) -> dict[str, float]:
    fields = {
        field["name"].strip(): float(field["value"]) for field in _FIELD.finditer(match["fields"])
    }
    return {"iteration": int(match["iteration"]), **fields}


def _tail(text: str) -> str:
    return "\n".join(text.splitlines()[-_TAIL_LINES:])
