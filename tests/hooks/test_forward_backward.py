"""The drop-in function with Megatron's own forward_step, without processes or process groups.

Ranks are threads on the strict transport; groups are stand-ins that know rank and size.
"""

from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from megatron.core.model_parallel_config import ModelParallelConfig

from hanayo_megatron.megatron import forward_backward as module
from hanayo_megatron.megatron.pipeline import Pipeline
from hanayo_megatron.runtime.strict_transport import StrictNetwork
from hanayo_megatron.schedule.schedule import ScheduleSpec

SEQUENCE, BATCH, HIDDEN = 3, 2, 4


class Stage(torch.nn.Module):
    """A layer that takes its input as Megatron's models do."""

    def __init__(self, stage, chunk, config):
        super().__init__()
        self.vp_stage, self.config = chunk, config
        generator = torch.Generator().manual_seed(stage)
        weight = torch.randn(HIDDEN, HIDDEN, generator=generator, dtype=torch.float64)
        self.weight = torch.nn.Parameter(weight)
        self.input_tensor = None

    def set_input_tensor(self, tensors):
        self.input_tensor = tensors[0]

    def forward(self, data):
        hidden = data if self.input_tensor is None else self.input_tensor
        return torch.tanh(hidden @ self.weight)


def samples(num_microbatches):
    generator = torch.Generator().manual_seed(99)
    shape = (num_microbatches, SEQUENCE, BATCH, HIDDEN)
    return list(torch.randn(shape, generator=generator, dtype=torch.float64))


def forward_step(data_iterator, model):
    data = next(data_iterator)
    output = model(data)
    return output, lambda out: (out.square().sum(), {"lm loss": out.detach().square().sum()})


def group(rank, size):
    return SimpleNamespace(rank=lambda: rank, size=lambda: size)


class Events:
    """What the step did to one rank's hooks, in order."""

    def __init__(self):
        self.seen = []

    def no_sync(self, chunk):
        @contextmanager
        def held():
            self.seen.append(("hold", chunk))
            yield
            self.seen.append(("release", chunk))

        return held

    def grad_sync(self, chunk):
        return lambda parameters: self.seen.append(("reduce", chunk, len(list(parameters))))

    def finalize(self, model, num_tokens, **groups):
        self.seen.append(("finalize", num_tokens))


@pytest.fixture
def run_step(monkeypatch):
    """Run one step of a pipeline in threads; the chunks, returned losses and events by rank."""
    monkeypatch.setattr(torch.cuda, "current_device", lambda: torch.device("cpu"))
    monkeypatch.setattr(module, "agree_on_step", lambda **step: None)
    monkeypatch.setattr(
        module,
        "collect_on_rank",
        lambda collected, **ranks: [
            item for _, items in sorted(collected.items()) for item in items
        ],
    )

    def run(
        name, pp, microbatches, *, waves=1, forward_only=False, reduce_by_call=False, **settings
    ):
        spec = ScheduleSpec(pp=pp, microbatches=microbatches, waves=waves)
        events = [Events() for _ in range(pp)]
        transports = {}
        monkeypatch.setattr(module, "transport_for", lambda g, **_: transports[g.rank()])

        def work(rank, transport):
            transports[rank] = transport
            pipeline = Pipeline(name, spec)
            chunks = range(pipeline.num_chunks)
            config = ModelParallelConfig(
                pipeline_dtype=torch.float64, deallocate_pipeline_outputs=True
            )
            config.hidden_size = HIDDEN
            config.calculate_per_token_loss = False
            config.no_sync_func = [events[rank].no_sync(c) for c in chunks]
            if reduce_by_call:
                config.grad_sync_func = [events[rank].grad_sync(c) for c in chunks]
            config.finalize_model_grads_func = events[rank].finalize
            vars(config).update(settings)
            before = dict(vars(config))
            stages = pipeline.placement.stages_of[rank]
            multiple = pipeline.num_chunks > 1
            model = [Stage(s, c if multiple else None, config) for c, s in enumerate(stages)]
            with torch.set_grad_enabled(not forward_only):
                losses = module.forward_backward(pipeline)(
                    forward_step_func=forward_step,
                    data_iterator=[iter(samples(microbatches)) for _ in chunks],
                    model=model,
                    num_microbatches=microbatches,
                    seq_length=SEQUENCE,
                    micro_batch_size=BATCH,
                    forward_only=forward_only,
                    p2p_communicator=object(),
                    pg_collection=SimpleNamespace(
                        pp=group(rank, pp), cp=group(0, 1), tp=group(0, 1)
                    ),
                )
            assert vars(config) == before, "the config was not left as it was found"
            return dict(zip(stages, model, strict=True)), losses

        results = StrictNetwork(pp).run(work)
        weights = {stage: chunk for held, _ in results for stage, chunk in held.items()}
        return weights, [losses for _, losses in results], [e.seen for e in events]

    return run


def expected(weights, microbatches):
    """Losses and gradients by torch, with Megatron's division by the number of microbatches."""
    copies = [weights[s].weight.detach().clone().requires_grad_() for s in sorted(weights)]
    losses = []
    for hidden in samples(microbatches):
        for weight in copies:
            hidden = torch.tanh(hidden @ weight)
        loss = hidden.square().sum()
        losses.append(loss.item())
        (loss / microbatches).backward()
    return losses, [copy.grad for copy in copies]


CASES = [
    ("1f1b", 2, 1, 3),
    ("gpipe", 3, 1, 4),
    ("hanayo", 2, 1, 1),
    ("hanayo", 2, 2, 5),
    ("hanayo", 4, 1, 8),
    ("hanayo", 3, 2, 4),
]


@pytest.mark.parametrize(("name", "pp", "waves", "microbatches"), CASES)
def test_gradients_and_losses(run_step, name, pp, waves, microbatches):
    weights, losses, _ = run_step(name, pp, microbatches, waves=waves)
    expected_losses, gradients = expected(weights, microbatches)
    (reported,) = [found for found in losses if found]
    assert [entry["lm loss"].item() for entry in reported] == expected_losses
    for stage, gradient in enumerate(gradients):
        torch.testing.assert_close(weights[stage].weight.grad, gradient, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("reduce_by_call", [False, True])
def test_reduction_starts_behind_a_chunks_last_backward(run_step, reduce_by_call):
    _, _, events = run_step("hanayo", 2, 4, waves=2, reduce_by_call=reduce_by_call)
    for seen in events:
        assert seen[:4] == [("hold", chunk) for chunk in range(4)]
        assert seen[-1] == ("finalize", None)
        # Chunks finish their backwards from the deepest to the first, each released once.
        released = [event[1] for event in seen[4:-5] if event[0] == "release"]
        assert released == [3, 2, 1, 0]
        reduced = [event for event in seen if event[0] == "reduce"]
        assert reduced == ([("reduce", c, 1) for c in (3, 2, 1, 0)] if reduce_by_call else [])


def test_forward_only_computes_losses_and_nothing_else(run_step):
    weights, losses, events = run_step("hanayo", 2, 3, waves=2, forward_only=True)
    (reported,) = [found for found in losses if found]
    assert [e["lm loss"].item() for e in reported] == expected(weights, 3)[0]
    assert all(chunk.weight.grad is None for chunk in weights.values())
    assert not any(event[0] in ("reduce", "finalize") for seen in events for event in seen)


def test_partial_checkpoints_are_refused(run_step):
    """They would be dropped without a word."""
    name = "num_microbatches_with_partial_activation_checkpoints"
    with pytest.raises(ValueError, match=f"{name} counts"):
        run_step("hanayo", 2, 2, **{name: 1})


def test_no_tensor_is_moved_between_devices(run_step, monkeypatch):
    """A copy from the host's pageable memory makes the host wait for all of the GPU's work."""

    def moved(*_, **__):
        raise AssertionError("a tensor was moved")

    monkeypatch.setattr(torch.Tensor, "to", moved)
    run_step("hanayo", 2, 2)


def test_one_of_communicator_and_groups_is_refused_as_by_megatron():
    step = module.forward_backward(Pipeline("1f1b", ScheduleSpec(pp=2, microbatches=1)))
    with pytest.raises(ValueError, match="together or not at all"):
        step(
            forward_step_func=forward_step,
            data_iterator=[iter(())],
            model=[Stage(0, None, ModelParallelConfig())],
            num_microbatches=1,
            seq_length=SEQUENCE,
            micro_batch_size=BATCH,
            p2p_communicator=object(),
        )
