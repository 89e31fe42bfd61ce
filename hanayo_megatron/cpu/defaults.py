"""The Megatron flags without which it cannot run on a CPU."""

from __future__ import annotations

from collections.abc import Sequence

# Each line: the flag, its value if it takes one. All name implementations in plain PyTorch.
_DEFAULTS: tuple[tuple[str, ...], ...] = (
    ("--transformer-impl", "local"),
    ("--attention-backend", "unfused"),
    ("--distributed-backend", "gloo"),
    ("--use-cpu-initialization",),
    ("--no-persist-layer-norm",),
    ("--no-gradient-accumulation-fusion",),
    ("--no-masked-softmax-fusion",),
    ("--no-bias-gelu-fusion",),
    ("--no-bias-swiglu-fusion",),
    ("--no-bias-dropout-fusion",),
    ("--no-rope-fusion",),
)


def missing_defaults(arguments: Sequence[str]) -> list[str]:
    """The flags above, with their values, that `arguments` does not already hold."""
    given = {argument.split("=", 1)[0] for argument in arguments}
    return [word for default in _DEFAULTS if default[0] not in given for word in default]
