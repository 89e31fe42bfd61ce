"""The library against published formulas and against figures measured with other engines."""

from itertools import product

import pytest
from schedule_measure import measure, stage_times

from hanayo_megatron.schedule.costs import Costs
from hanayo_megatron.schedule.memory import peak_activations, peak_live
from hanayo_megatron.schedule.registry import build_schedule
from hanayo_megatron.schedule.schedule import ScheduleSpec

EQUAL = stage_times(1, 1, 1)
"""One stage: F = I = W = 1, so B = 2."""
GRID = list(product(range(1, 9), range(1, 33)))


def build(name, pp, microbatches, **spec):
    return build_schedule(name, ScheduleSpec(pp=pp, microbatches=microbatches, **spec))


def idle(schedule, times=EQUAL):
    """Stage times that the step takes longer than a rank's work."""
    found = measure(schedule, times)
    return found.makespan - max(found.busy)


@pytest.mark.parametrize("times", [EQUAL, stage_times(3, 2, 1)], ids=["B=2F", "B=F"])
@pytest.mark.parametrize("name", ["gpipe", "1f1b", "eager-1f1b"])
def test_linear_schedules_equal_their_formula(name, times):
    for pp, microbatches in GRID:
        bubble = measure(build(name, pp, microbatches), times).bubble
        assert bubble == pytest.approx((pp - 1) / (microbatches + pp - 1)), (pp, microbatches)


@pytest.mark.parametrize("chunks", [2, 3])
def test_looped_schedules_equal_their_formula(chunks):
    for pp, microbatches in GRID:
        bubble = (pp - 1) / (chunks * microbatches + pp - 1)
        if microbatches % pp == 0:
            found = measure(build("interleaved", pp, microbatches, chunks=chunks), EQUAL)
            assert found.bubble == pytest.approx(bubble), (pp, microbatches)
        if microbatches >= pp:
            found = measure(build("breadth-first", pp, microbatches, chunks=chunks), EQUAL)
            assert found.bubble == pytest.approx(bubble), (pp, microbatches)
        else:
            waits = pp - 1 + (chunks - 1) * (pp - microbatches)
            schedule = build("breadth-first", pp, microbatches, chunks=chunks)
            assert idle(schedule) == 3 * waits, (pp, microbatches)


def test_peaks_of_schedules_without_waves():
    for pp, microbatches in GRID:
        ranks = range(pp)
        expected = {
            "gpipe": [microbatches for _ in ranks],
            "breadth-first": [microbatches for _ in ranks],
            "1f1b": [min(microbatches, pp - r) for r in ranks],
            "eager-1f1b": [min(microbatches, 2 * (pp - r) - 1) for r in ranks],
            "zb-h1": [min(microbatches, pp) for _ in ranks],
            "zb-h2": [min(microbatches, 2 * pp - 1) for _ in ranks],
        }
        if microbatches % pp == 0:
            expected["interleaved"] = [min(2 * microbatches, 3 * pp - 1 - 2 * r) / 2 for r in ranks]
        for name, peaks in expected.items():
            found = peak_activations(build(name, pp, microbatches))
            if name.startswith("zb"):
                assert all(f <= p for f, p in zip(found, peaks, strict=True)), (name, pp)
            else:
                assert found == peaks, (name, pp, microbatches)


@pytest.mark.parametrize(
    ("pp", "waves", "bubble"),
    [
        *((8, w, b) for w, b in ((1, 0.3684), (2, 0.2381), (4, 0.1351), (8, 0.0725))),
        *((4, w, b) for w, b in ((1, 0.3333), (2, 0.2131), (4, 0.1193), (8, 0.0634))),
    ],
)
def test_hanayo_with_as_many_microbatches_as_ranks(pp, waves, bubble):
    schedule = build("hanayo", pp, pp, waves=waves)
    assert round(measure(schedule, EQUAL).bubble, 4) <= bubble
    peaks = peak_activations(schedule)
    assert min(peaks) == ((2 * waves - 1) * pp + 1) / (2 * waves)
    assert max(peaks) == pp


@pytest.mark.parametrize(
    ("pp", "waves", "microbatches", "most_idle"),
    [
        # An unrepeated greedy order waits 55, 70, 96 (W=1), 99, 77, 170 (W=2), 183, 77, 219 (W=4).
        *((8, 1, m, i) for m, i in ((9, 28), (12, 28), (16, 28), (32, 28), (64, 28))),
        *((8, 2, m, i) for m, i in ((9, 33), (12, 39), (16, 34), (32, 42))),
        *((8, 4, m, i) for m, i in ((9, 44), (12, 49), (16, 34), (32, 49))),
        *((4, 1, m, i) for m, i in ((5, 12), (16, 12), (32, 12))),
        *((4, 2, m, i) for m, i in ((5, 15), (8, 12), (16, 19))),
    ],
)
def test_hanayo_with_more_microbatches_than_ranks(pp, waves, microbatches, most_idle):
    schedule = build("hanayo", pp, microbatches, waves=waves)
    assert idle(schedule) <= most_idle
    assert max(peak_activations(schedule)) <= pp


@pytest.mark.parametrize("waves", [1, 2, 4])
@pytest.mark.parametrize("pp", [1, 2, 3, 4, 5, 8])
def test_hanayo_zb_waits_only_for_the_first_input(pp, waves):
    for microbatches in (pp, pp + 1, 2 * pp - 1, 2 * pp, 3 * pp + 1, 4 * pp):
        schedule = build("hanayo-zb", pp, microbatches, waves=waves)
        assert idle(schedule) == pp - 1, microbatches
        assert max(peak_activations(schedule)) <= pp


@pytest.mark.parametrize(("waves", "bubble"), [(1, 0.0352), (4, 0.0090)])
def test_hanayo_zb_bubble(waves, bubble):
    assert round(measure(build("hanayo-zb", 8, 32, waves=waves), EQUAL).bubble, 4) <= bubble


@pytest.mark.parametrize(
    ("pp", "bubble", "peaks"),
    [
        (4, 0.25, [3, 4, 4, 3]),
        (8, 0.3333, [5, 6, 8, 8, 8, 8, 6, 5]),
        (16, 0.3684, [9, 10, 12, 13, 15, 16, 16, 16, 16, 16, 16, 15, 13, 12, 10, 9]),
    ],
)
def test_chimera_with_as_many_microbatches_as_ranks(pp, bubble, peaks):
    schedule = build("chimera", pp, pp)
    assert round(measure(schedule, EQUAL).bubble, 4) <= bubble
    assert peak_activations(schedule) == peaks
    assert min(peaks) == pp / 2 + 1
    assert max(peaks) == pp
    assert all(len(stages) == 2 for stages in schedule.placement.stages_of)  # weights 2 M_w


@pytest.mark.parametrize(
    ("name", "backward", "most", "peak"),
    [
        # The SC'21 code: 70, 126, 105, 146. 1F1B: 78, 117, 117, 156.
        ("chimera", 1, 70, 8),
        ("chimera", 2, 108, 8),
        ("chimera-doubling", 2, 105, 16),
        ("chimera-doubling", 3, 140, 16),
    ],
)
def test_chimera_with_many_microbatches(name, backward, most, peak):
    schedule = build(name, 8, 32, costs=Costs(forward=1, backward=backward))
    assert measure(schedule, stage_times(1, backward, 0)).makespan <= most
    assert max(peak_activations(schedule)) <= peak


def test_chimera_equals_its_formula_for_equal_times():
    costs = Costs(forward=1, backward=1)
    for pp, blocks in product((2, 4, 8), (1, 2, 3)):
        schedule = build("chimera", pp, pp * blocks, costs=costs)
        assert idle(schedule, stage_times(1, 1, 0)) <= pp - 2, (pp, blocks)


def test_chimera_splits_microbatches_evenly():
    for name, pp, microbatches in product(("chimera", "chimera-doubling"), (2, 4, 6), range(1, 24)):
        down, up = build(name, pp, microbatches).microbatches_of_replica
        assert (len(down), len(up)) == ((microbatches + 1) // 2, microbatches // 2)


MEASURED = {
    # (P, M): makespans of 1F1B, ZB-1p, ZB-2p, interleaved V=2, ZB-V, V-Half, V-Min
    (4, 8): (33, 27, 27, 57, 51, 53, 59),
    (4, 16): (57, 51, 51, 105, 99, 101, 107),
    (8, 16): (69, 55, 55, 117, 103, 113, 123),
    (8, 24): (93, 79, 79, 165, 151, 161, 171),
    (8, 32): (117, 103, 103, 213, 199, 209, 219),
    (16, 48): (189, 159, 159, 333, 303, 329, 347),
}
NAMES = ("1f1b", "zb-h1", "zb-h2", "interleaved", "zb-v", "v-half", "v-min")


@pytest.mark.parametrize(("pp", "microbatches"), list(MEASURED))
def test_makespans_of_zero_bubble_engines(pp, microbatches):
    for name, makespan in zip(NAMES, MEASURED[pp, microbatches], strict=True):
        found = measure(build(name, pp, microbatches), EQUAL)
        assert found.makespan <= makespan, name
    for name, work in (("zb-h2", 3), ("zb-v", 6)):
        assert measure(build(name, pp, microbatches), EQUAL).own_span == work * microbatches


@pytest.mark.parametrize(
    ("name", "peaks"),
    [
        ("zb-h1", {4: 4, 8: 8, 16: 16}),
        ("zb-h2", {4: 7, 8: 15, 16: 31}),
        ("zb-v", {4: 8, 8: 16, 16: 32}),
        ("v-half", {4: 6, 8: 10, 16: 18}),
        ("v-min", {4: 4, 8: 8, 16: 12}),
    ],
)
def test_peaks_of_zero_bubble_engines(name, peaks):
    for pp, peak in peaks.items():
        assert max(peak_live(build(name, pp, 3 * pp))) <= peak


@pytest.mark.parametrize(("pp", "microbatches"), [(2, 3), (2, 9), (4, 7), (4, 8), (8, 16), (8, 40)])
@pytest.mark.parametrize("fused", [3, 2.5, 2])
def test_dualpipe_v_bubble_equals_its_formula(pp, microbatches, fused):
    """(PP/2-1)(F&B + B - 3W) with PP = 2P stages."""
    schedule = build("dualpipe-v", pp, microbatches)
    found = measure(schedule, EQUAL, fused=fused)
    assert found.makespan - min(found.busy) == (pp - 1) * (fused + 2 - 3)
    assert max(peak_live(schedule)) == 2 * pp + 1


def test_dualpipe_v_without_overlap_waits_only_for_the_first_input():
    for pp, microbatches in ((4, 8), (8, 16), (8, 24)):
        assert idle(build("dualpipe-v", pp, microbatches)) == pp - 1


@pytest.mark.parametrize("waves", [1, 2, 3])
def test_idle_time_of_hanayo_grows_slowly_with_the_blocks(waves):
    for pp, blocks in product((2, 4, 5, 7), (2, 4)):
        once = idle(build("hanayo", pp, pp, waves=waves))
        assert idle(build("hanayo", pp, pp * blocks, waves=waves)) <= once + (blocks - 1) * pp


def test_idle_time_of_chimera_does_not_grow_with_the_blocks():
    for pp, blocks in product((2, 4, 6, 8), (1, 2, 3)):
        assert idle(build("chimera", pp, pp * blocks)) == 2 * (pp - 2)
        if blocks > 1:
            assert idle(build("chimera-doubling", pp, pp * blocks)) == 3 * (pp / 2 - 1)


def test_v_half_and_v_min_take_what_their_docstrings_say():
    for pp in range(2, 13):
        for microbatches in (pp // 2 + 1, pp, pp + 1, 2 * pp):
            found = measure(build("v-min", pp, microbatches), EQUAL)
            assert found.makespan <= 6 * (microbatches - 1) + 4 * pp + 1
            if pp % 2 == 0 and pp >= 4:
                found = measure(build("v-half", pp, microbatches), EQUAL)
                assert found.makespan <= 6 * (microbatches - 1) + 3 * pp - 1
