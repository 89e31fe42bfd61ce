"""Replaces functions of Megatron by wrappers, loudly when one is not what it was."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import update_wrapper
from types import ModuleType
from typing import Any

from hanayo_megatron.errors import HanayoError

TESTED_RELEASES = ("0.19.2",)

_MARK = "hooked_by_hanayo_megatron"


class HookError(HanayoError, RuntimeError):
    """Megatron is not as the plug-in expects it."""


@dataclass(frozen=True)
class Hook:
    """One place in Megatron that is wrapped.

    Args:
        target: ``module:attribute``.
        parameters: names that the target must accept; the wrapper relies on them.
        wrap: gets the original, returns what takes its place.
    """

    target: str
    parameters: tuple[str, ...]
    wrap: Callable[[Any], Any]


@dataclass(frozen=True)
class Replacement:
    """A hook in force: everywhere the original was known by name."""

    original: Any
    replacement: Any
    places: tuple[tuple[ModuleType, str], ...]

    def undo(self) -> None:
        for module, name in self.places:
            setattr(module, name, self.original)


def apply(hooks: Iterable[Hook]) -> list[Replacement]:
    """Put all hooks in force, or none.

    What other modules imported by name is replaced there too; a function or class that is hooked
    already stays as it is. Hooks with one target wrap each other, the last one outermost. Raises
    HookError naming the target that is missing or has other parameters.
    """
    found = [(hook, _resolve(hook)) for hook in _merged(hooks)]
    return [_replace(hook, original) for hook, original in found if not _is_ours(original)]


def _merged(hooks: Iterable[Hook]) -> list[Hook]:
    by_target: dict[str, Hook] = {}
    for hook in hooks:
        inner = by_target.get(hook.target)
        by_target[hook.target] = hook if inner is None else _around(inner, hook)
    return list(by_target.values())


def _around(inner: Hook, outer: Hook) -> Hook:
    return Hook(
        inner.target,
        (*inner.parameters, *outer.parameters),
        lambda original: outer.wrap(inner.wrap(original)),
    )


def _is_ours(target: Any) -> bool:
    return getattr(target, _MARK, False)


def _resolve(hook: Hook) -> Any:
    module_name, _, name = hook.target.partition(":")
    try:
        original = getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError) as error:
        raise HookError(f"{_complaint(hook)}: it does not exist ({error})") from error
    known = inspect.signature(original).parameters
    missing = [p for p in hook.parameters if p not in known]
    if missing:
        raise HookError(
            f"{_complaint(hook)}: it has no parameter {', '.join(missing)}; "
            f"it has {', '.join(known)}"
        )
    return original


def _complaint(hook: Hook) -> str:
    from megatron.core import __version__

    return (
        f"hanayo_megatron was tested with megatron-core {', '.join(TESTED_RELEASES)}; this is "
        f"{__version__}, and {hook.target} is not what the plug-in needs"
    )


def _replace(hook: Hook, original: Any) -> Replacement:
    replacement = hook.wrap(original)
    if inspect.isfunction(replacement):
        update_wrapper(replacement, original)
    setattr(replacement, _MARK, True)
    places = []
    for module in list(sys.modules.values()):
        if isinstance(module, ModuleType):
            names = [name for name, value in vars(module).items() if value is original]
            for name in names:
                setattr(module, name, replacement)
                places.append((module, name))
    return Replacement(original, replacement, tuple(places))
