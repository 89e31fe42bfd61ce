"""The plug-in's flags, known without importing Megatron."""

from __future__ import annotations

from collections.abc import Sequence

SCHEDULE = "--pipeline-schedule"
MODULE = "--pipeline-schedule-module"
WAVES = "--num-waves"
CHUNKS = "--num-chunks"
WATCHDOG = "--pipeline-watchdog-seconds"
DEBUG = "--pipeline-debug"
COMMUNICATORS = "--pipeline-communicators"
TIMELINE = "--pipeline-timeline"
TIMELINE_STEPS = "--pipeline-timeline-steps"

YAML = "--yaml-cfg"
"""Megatron's own."""

_OURS = {
    *(SCHEDULE, MODULE, WAVES, CHUNKS),
    *(WATCHDOG, DEBUG, COMMUNICATORS, TIMELINE, TIMELINE_STEPS),
}
_HELP = {"--help", "-h"}


def concern_plugin(argv: Sequence[str]) -> bool:
    """Whether a command line has a flag of the plug-in, or asks for help."""
    return not (_OURS | _HELP).isdisjoint(_names(argv))


def are_replaced(argv: Sequence[str]) -> bool:
    """Whether Megatron would drop the plug-in's flags of a command line."""
    return YAML in (names := _names(argv)) and not _OURS.isdisjoint(names)


def _names(argv: Sequence[str]) -> set[str]:
    return {word.split("=", 1)[0] for word in argv}
