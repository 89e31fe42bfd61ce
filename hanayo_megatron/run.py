"""Runs a training script under this package: `torchrun ... -m hanayo_megatron.run SCRIPT ...`.

SCRIPT, for example the pretrain_gpt.py of a Megatron-LM checkout, needs no change. It runs as
`python SCRIPT ...` would, with Megatron prepared for CPUs where there is no GPU and for the
pipeline schedule that the arguments name.
"""

from __future__ import annotations

import os
import runpy
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from hanayo_megatron import cpu, flags
from hanayo_megatron.errors import HanayoError


def prepare(argv: Sequence[str]) -> list[str]:
    """Prepare PyTorch and Megatron for a script's arguments, before it imports Megatron.

    Args:
        argv: the script's arguments, without its name.

    Returns:
        The arguments to give to Megatron.
    """
    if os.environ.get("RANK", "0") != "0":
        warnings.filterwarnings("ignore", category=UserWarning)
        warnings.filterwarnings("ignore", category=FutureWarning)
    arguments = cpu.install(argv)
    if flags.concern_plugin(arguments):
        from hanayo_megatron import megatron

        megatron.install(arguments)
    return arguments


@contextmanager
def errors_on_one_line() -> Iterator[None]:
    """End with one line and exit code 1 on an error that is the user's to solve."""
    try:
        yield
    except HanayoError as error:
        rank = os.environ.get("RANK", "0")
        raise SystemExit(f"hanayo_megatron: error on rank {rank}: {error}") from None


def main(argv: Sequence[str]) -> None:
    """Run a script as `__main__`.

    Args:
        argv: the script's path, then its arguments.

    Raises:
        SystemExit: no script was named, or there is none at that path.
    """
    script = Path(argv[0]) if argv else None
    if script is None or not script.is_file():
        given = f"there is no file {script}" if script else "no script was named"
        raise SystemExit(
            f"hanayo_megatron.run: {given}. Name the training script first, then its arguments: "
            "torchrun ... -m hanayo_megatron.run path/to/pretrain_gpt.py --num-layers 8 ..."
        )
    # As `python SCRIPT` would: the script finds its neighbours, here before Megatron is imported.
    sys.path[0] = str(script.resolve().parent)
    with errors_on_one_line():
        sys.argv = [str(script), *prepare(argv[1:])]
        runpy.run_path(str(script), run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
