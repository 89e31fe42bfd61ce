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

_OURS = {
    *(SCHEDULE, MODULE, WAVES, CHUNKS),
    *(WATCHDOG, DEBUG, COMMUNICATORS, TIMELINE, TIMELINE_STEPS),
}
_HELP = {"--help", "-h"}


def concern_plugin(argv: Sequence[str]) -> bool:
    """Whether a command line has a flag of the plug-in, or asks for help."""
    return not (_OURS | _HELP).isdisjoint(word.split("=", 1)[0] for word in argv)
