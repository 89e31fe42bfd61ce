"""The executor gives the gradients of one rank without a pipeline, on a transport like NCCL."""

import pytest
import torch
from library_cases import library_cases
from pipeline_model import (
    Conditions,
    ModuleWorker,
    PoisonedBuffers,
    make_stages,
    run_pipeline,
    run_reference,
)

from hanayo_megatron.lowering.operation import Exchange
from hanayo_megatron.runtime.executor import Executor
from hanayo_megatron.runtime.messenger import Messenger
from hanayo_megatron.runtime.strict_transport import StrictNetwork
from hanayo_megatron.runtime.transport import TransportError
from hanayo_megatron.schedule import (
    Action,
    Kind,
    Placement,
    Schedule,
    ScheduleSpec,
    build_schedule,
    schedule_names,
)
from hanayo_megatron.schedule.memory import peak_live
from hanayo_megatron.simulate.prefetch import lower_with_least_buffers
from hanayo_megatron.simulate.transfer_buffers import peak_buffers

FEW = library_cases((2, 3, 4), (1, 2), (1, 4, 8))
ALL = library_cases((2, 3, 4), (1, 2, 3), range(1, 10))


def check(name, spec):
    """Every run against torch on one rank, and all runs of one schedule bit for bit equal."""
    schedule = build_schedule(name, spec)
    expected, expected_losses = run_reference(schedule)
    stragglers = range(spec.pp)
    runs = [
        run_pipeline(schedule, Conditions(communicators=layout, straggler=straggler))
        for layout, straggler in (
            ("pair", None),
            ("group", None),
            *(("pair", s) for s in stragglers),
        )
    ]
    first = runs[0]
    for ours, theirs in zip(first.gradients, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-12)
    for run in runs:
        assert run.losses == expected_losses
        assert all(map(torch.equal, run.gradients, first.gradients))
        for s in run.stats:
            assert s.live_activations == s.receive_buffers == s.send_buffers == 0
        for rank, worker in enumerate(run.workers):
            trained = {action.stage for action in schedule.orders[rank]}
            assert sorted(worker.synchronised) == sorted(trained)


def test_every_schedule_of_the_library_is_run():
    assert {case.values[0] for case in FEW} == set(schedule_names())


@pytest.mark.parametrize(("name", "spec"), FEW)
def test_gradients_equal_a_run_on_one_rank_whoever_is_slow(name, spec):
    check(name, spec)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "spec"), ALL)
def test_gradients_of_all_sizes(name, spec):
    check(name, spec)


@pytest.mark.parametrize(("name", "spec"), library_cases((2, 4), (1, 2), (1, 3, 8)))
def test_peaks_equal_the_simulators(name, spec):
    schedule = build_schedule(name, spec)
    for how in (Conditions(), Conditions(announced=True)):
        stats, peaks = run_pipeline(schedule, how).stats, peak_buffers(how.lists(schedule))
        assert [s.peak_activations for s in stats] == peak_live(schedule)
        assert tuple(s.peak_receive_buffers for s in stats) == peaks.receive
        assert tuple(s.peak_send_buffers for s in stats) == peaks.send


@pytest.mark.parametrize(("name", "spec"), FEW)
def test_no_rank_sends_to_itself(name, spec):
    for rank, program in enumerate(lower_with_least_buffers(build_schedule(name, spec)).programs):
        for operation in program:
            if isinstance(operation, Exchange):
                assert operation.peer != rank
                assert all(t.source != t.target for t in (*operation.sends, *operation.receives))


@pytest.mark.parametrize("communicators", ["pair", "group"])
@pytest.mark.parametrize("name", ["1f1b", "hanayo", "hanayo-zb", "interleaved", "chimera"])
@pytest.mark.parametrize("checked", [False, True])
def test_shapes_that_change_and_tensors_of_several_dtypes(name, communicators, checked):
    schedule = build_schedule(name, ScheduleSpec(pp=4, microbatches=8, waves=2))
    expected, expected_losses = run_reference(schedule, several=True, ragged=True)
    for straggler in (None, 0, 3):
        run = run_pipeline(
            schedule,
            Conditions(
                communicators=communicators,
                several=True,
                ragged=True,
                announced=True,
                checked=checked,
                straggler=straggler,
            ),
        )
        assert run.losses == expected_losses
        for ours, theirs in zip(run.gradients, expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-12)
        for s in run.stats:
            assert s.live_activations == s.receive_buffers == s.send_buffers == 0


@pytest.mark.slow
@pytest.mark.parametrize("communicators", ["pair", "group"])
@pytest.mark.parametrize(("name", "spec"), ALL)
def test_announced_shapes_cannot_deadlock(name, spec, communicators):
    schedule = build_schedule(name, spec)
    plain = run_pipeline(schedule)
    announced = run_pipeline(schedule, Conditions(communicators=communicators, announced=True))
    assert all(map(torch.equal, announced.gradients, plain.gradients))


@pytest.mark.parametrize("name", ["1f1b", "hanayo", "zb-v"])
def test_debug_mode_changes_nothing(name):
    schedule = build_schedule(name, ScheduleSpec(pp=3, microbatches=6))
    plain, checked = run_pipeline(schedule), run_pipeline(schedule, Conditions(checked=True))
    assert all(map(torch.equal, checked.gradients, plain.gradients))


def test_a_tensor_of_another_size_than_expected_is_refused_before_it_is_sent():
    class Narrow(ModuleWorker):
        def forward(self, stage, microbatch, input_tensor):
            output = super().forward(stage, microbatch, input_tensor)
            return output[:2] if stage == 1 else output

    assert (
        "the activation of microbatch 0 from stage 1 on rank 1 to stage 2 on rank 2 is [2, 4] of "
        "torch.float64; the receiver expects [3, 4] of torch.float64"
    ) in error_of(Narrow, build_schedule("1f1b", ScheduleSpec(pp=3, microbatches=2)))


def error_of(worker_type, schedule):
    """The text of the TransportError that ends a step of such workers."""
    lowered = lower_with_least_buffers(schedule)
    stages = make_stages(schedule.placement.num_stages)

    def work(rank, transport):
        worker, messenger = worker_type(stages, schedule), Messenger(transport, PoisonedBuffers())
        Executor(lowered, rank=rank, worker=worker, messenger=messenger).run()

    with pytest.raises(TransportError) as error:
        StrictNetwork(schedule.placement.num_ranks).run(work)
    return str(error.value)


@pytest.mark.parametrize("stage", [1, 2])
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda output: None, "hands on NoneType in microbatch 0; it must be a tensor or a tuple"),
        (lambda output: [output], "hands on list in microbatch 0; it must be a tensor or a tuple"),
        (
            lambda output: output.detach().requires_grad_(),
            "has no gradient of its input in microbatch 0: what it hands on does not depend on it",
        ),
    ],
)
def test_a_stage_that_hands_on_what_cannot_go_on_is_named(stage, change, words):
    """Stage 1 sends what it makes to the other rank, stage 2 to its own."""

    class Changed(ModuleWorker):
        def forward(self, at, microbatch, input_tensor):
            output = super().forward(at, microbatch, input_tensor)
            return change(output) if at == stage else output

    placement = Placement(2, (0, 1, 0, 0))
    orders = tuple(
        tuple(Action(s, Kind.F, 0) for s in stages)
        + tuple(Action(s, Kind.B, 0) for s in reversed(stages))
        for stages in ((0, 2, 3), (1,))
    )
    error = error_of(Changed, Schedule("bent", placement, 1, orders))
    assert f"stage {stage} {words}" in error
