"""Schedules as data: actions, placements, the library. Needs neither torch nor Megatron."""

from hanayo_megatron.schedule.action import Action, Kind
from hanayo_megatron.schedule.costs import Costs
from hanayo_megatron.schedule.csv_file import load_schedule, write_schedule
from hanayo_megatron.schedule.placement import Placement
from hanayo_megatron.schedule.registry import build_schedule, register_schedule, schedule_names
from hanayo_megatron.schedule.schedule import Schedule, ScheduleError, ScheduleSpec
from hanayo_megatron.schedule.verify import find_faults, verify

__all__ = [
    "Action",
    "Costs",
    "Kind",
    "Placement",
    "Schedule",
    "ScheduleError",
    "ScheduleSpec",
    "build_schedule",
    "find_faults",
    "load_schedule",
    "register_schedule",
    "schedule_names",
    "verify",
    "write_schedule",
]
