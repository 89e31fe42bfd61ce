"""Every schedule of the library for any ranks, waves, chunks and microbatches."""

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schedule_measure import measure, stage_times

from hanayo_megatron.schedule.costs import Costs
from hanayo_megatron.schedule.csv_file import load_schedule, write_schedule
from hanayo_megatron.schedule.memory import peak_activations
from hanayo_megatron.schedule.registry import build_schedule, schedule_names
from hanayo_megatron.schedule.schedule import ScheduleError, ScheduleSpec
from hanayo_megatron.schedule.verify import find_faults

MOST_ACTIVATIONS = {
    "1f1b": lambda s: s.pp,
    "breadth-first": lambda s: s.microbatches,
    "chimera": lambda s: s.pp,
    "chimera-doubling": lambda s: 2 * s.pp,
    "dualpipe-v": lambda s: s.pp + 0.5,
    "eager-1f1b": lambda s: 2 * s.pp - 1,
    "gpipe": lambda s: s.microbatches,
    "hanayo": lambda s: s.pp,
    "hanayo-zb": lambda s: s.pp,
    "interleaved": lambda s: (s.chunks * s.pp + s.pp - 1) / s.chunks,
    "v-half": lambda s: (s.pp + 2) // 2,
    "v-min": lambda s: (s.pp + 4) // 3,
    "zb-h1": lambda s: s.pp,
    "zb-h2": lambda s: 2 * s.pp - 1,
    "zb-v": lambda s: s.pp,
}
ADAPTS = ("hanayo", "hanayo-zb", "zb-h1", "zb-h2", "zb-v", "v-half", "v-min")
SPLITS = ("hanayo-zb", "zb-h1", "zb-h2", "zb-v", "v-half", "v-min", "dualpipe-v")
WAVES = ("hanayo", "hanayo-zb")

costs = st.sampled_from(
    [
        Costs(),
        Costs(forward=1.0, input=1.3, weight=0.7, transfer=0.1),
        Costs(forward=1.0, backward=3.0, input=0.5, weight=2.0),
        Costs(forward=2.0, input=0.0, weight=0.0, transfer=5.0),
    ]
)
specs = st.builds(
    ScheduleSpec,
    pp=st.integers(1, 16),
    microbatches=st.integers(1, 64),
    waves=st.integers(1, 4),
    chunks=st.integers(1, 4),
    costs=costs,
)


def may_refuse(name, spec):
    return (name.startswith("chimera") and spec.pp % 2 == 1) or (
        name == "dualpipe-v" and spec.microbatches < 2 * spec.pp - 1
    )


def test_the_library_is_complete():
    assert schedule_names() == sorted(MOST_ACTIVATIONS)


@pytest.mark.parametrize("name", sorted(MOST_ACTIVATIONS))
@settings(max_examples=12, deadline=None)
@given(spec=specs)
def test_any_case(name, tmp_path_factory, spec):
    check(name, spec, tmp_path_factory.getbasetemp() / f"{name}.csv")


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(MOST_ACTIVATIONS))
@settings(max_examples=200, deadline=None)
@given(spec=specs)
def test_more_cases(name, tmp_path_factory, spec):
    check(name, spec, tmp_path_factory.getbasetemp() / f"{name}.csv")


@pytest.mark.parametrize("name", sorted(MOST_ACTIVATIONS))
def test_small_cases(name, tmp_path):
    for pp, microbatches, waves in product(range(1, 6), range(1, 12), (1, 2)):
        spec = ScheduleSpec(pp=pp, microbatches=microbatches, waves=waves, chunks=waves + 1)
        check(name, spec, tmp_path / "s.csv")


def check(name, spec, path):
    """Legal, within its memory, split or not as it says, the same after a trip through a file."""
    if may_refuse(name, spec):
        with pytest.raises(ScheduleError, match=f"given {spec.pp}|given {spec.microbatches}"):
            build_schedule(name, spec)
        return
    schedule = build_schedule(name, spec)
    assert schedule.name == name
    assert schedule.num_microbatches == spec.microbatches
    assert schedule.placement.num_ranks == spec.pp
    assert find_faults(schedule, memory_limit=MOST_ACTIVATIONS[name](spec)) == []
    assert not schedule.splits_backward or name in SPLITS
    if name in WAVES:
        assert schedule.placement.num_stages == 2 * spec.waves * spec.pp
    if all(schedule.microbatches_of_replica):
        write_schedule(schedule, path)
        found = load_schedule(path)
        assert found.placement == schedule.placement
        assert found.num_microbatches == schedule.num_microbatches
        assert found.orders == schedule.orders


@pytest.mark.parametrize("name", ADAPTS)
@settings(max_examples=15, deadline=None)
@given(
    pp=st.integers(1, 8),
    microbatches=st.integers(1, 20),
    waves=st.integers(1, 3),
    limit=st.floats(1, 20),
)
def test_schedules_that_adapt_keep_any_limit(name, pp, microbatches, waves, limit):
    spec = ScheduleSpec(pp=pp, microbatches=microbatches, waves=waves, memory_limit=limit)
    schedule = build_schedule(name, spec)
    assert find_faults(schedule, memory_limit=limit) == []


@pytest.mark.parametrize("name", [*ADAPTS, "chimera", "chimera-doubling"])
def test_a_limit_without_which_nothing_runs(name):
    with pytest.raises(
        ScheduleError, match=r"memory limit of 0\.9 M_a; it needs at least [12] M_a"
    ):
        build_schedule(name, ScheduleSpec(pp=4, microbatches=8, memory_limit=0.9))


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "interleaved", "breadth-first", "dualpipe-v"])
def test_schedules_that_do_not_adapt_refuse_a_limit_below_their_peak(name):
    spec = ScheduleSpec(pp=4, microbatches=8)
    peak = max(peak_activations(build_schedule(name, spec)))
    at_peak = ScheduleSpec(pp=4, microbatches=8, memory_limit=peak)
    assert build_schedule(name, at_peak).orders == build_schedule(name, spec).orders
    below = ScheduleSpec(pp=4, microbatches=8, memory_limit=peak - 0.25)
    with pytest.raises(
        ScheduleError, match=f"holds {peak:g} M_a on rank .*allow at least {peak:g}"
    ):
        build_schedule(name, below)


def test_more_memory_never_makes_a_schedule_slower_than_less():
    for name, pp in product(("zb-h1", "zb-v", "hanayo-zb", "hanayo"), (4, 8)):
        spans = []
        for limit in (1, pp // 2, pp, 2 * pp):
            spec = ScheduleSpec(pp=pp, microbatches=2 * pp, memory_limit=limit)
            spans.append(measure(build_schedule(name, spec), stage_times(1, 1, 1)).makespan)
        assert spans == sorted(spans, reverse=True), (name, pp)


def test_v_schedules_are_one_family():
    """The same memory gives the same schedule, whatever its name."""
    for limit in (3, 5, 8):
        orders = {
            build_schedule(name, ScheduleSpec(pp=8, microbatches=12, memory_limit=limit)).orders
            for name in ("zb-v", "v-half", "v-min")
        }
        assert len(orders) == 1


@pytest.mark.parametrize(
    ("name", "pp", "microbatches", "message"),
    [
        ("chimera", 3, 4, r"even number of ranks.*given 3, nearest are 2 and 4"),
        ("chimera-doubling", 1, 4, r"even number of ranks.*given 1, nearest is 2"),
        ("dualpipe-v", 4, 6, r"at least 7 microbatches.*given 6"),
    ],
)
def test_what_a_schedule_cannot_be_built_for(name, pp, microbatches, message):
    with pytest.raises(ScheduleError, match=message):
        build_schedule(name, ScheduleSpec(pp=pp, microbatches=microbatches))


def test_aliases():
    spec = ScheduleSpec(pp=4, microbatches=8)
    assert build_schedule("dapple", spec) == build_schedule("1f1b", spec)
    assert build_schedule("circular", spec) == build_schedule("interleaved", spec)
