"""Hooks reach every name of a function, complain about what they do not know, and come off."""

import sys
from types import ModuleType, SimpleNamespace

import pytest
from megatron.core import parallel_state
from megatron.core.models.common.language_module import language_module
from megatron.core.pipeline_parallel import utils

from hanayo_megatron.errors import HanayoError
from hanayo_megatron.megatron import install
from hanayo_megatron.megatron.hooks import Hook, HookError, apply
from hanayo_megatron.megatron.install import hook_megatron
from hanayo_megatron.megatron.memory_report import memory_hooks
from hanayo_megatron.megatron.pipeline import Pipeline
from hanayo_megatron.megatron.stages import stage_hooks
from hanayo_megatron.schedule.schedule import ScheduleError, ScheduleSpec


@pytest.fixture
def modules(monkeypatch):
    """Two modules; the second imported a function of the first by name."""
    origin, user = ModuleType("origin_of_f"), ModuleType("user_of_f")

    def f(a, b=1):
        return a + b

    origin.f = user.renamed = f
    monkeypatch.setitem(sys.modules, "origin_of_f", origin)
    monkeypatch.setitem(sys.modules, "user_of_f", user)
    return origin, user


def doubled(original):
    def f(*args, **kwargs):
        return 2 * original(*args, **kwargs)

    return f


def test_a_hook_reaches_names_imported_elsewhere_and_comes_off(modules):
    origin, user = modules
    original = origin.f
    (replacement,) = apply([Hook("origin_of_f:f", ("a", "b"), doubled)])
    assert (origin.f(1), user.renamed(1, b=2)) == (4, 6)
    replacement.undo()
    assert origin.f is original
    assert user.renamed is original


def derived(original):
    class Derived(original):
        pass

    return Derived


def test_what_is_hooked_already_stays_as_it_is(modules):
    """Arguments may be validated twice; gradients of two copies would be scaled twice."""
    origin, _ = modules
    origin.C = type("C", (), {"__init__": lambda self, a: None})
    hooks = [Hook("origin_of_f:f", ("a",), doubled), Hook("origin_of_f:C", ("a",), derived)]
    assert len(apply(hooks)) == 2
    once = origin.C
    assert apply(hooks) == []
    assert origin.C is once
    assert origin.f(1) == 4


@pytest.mark.parametrize(
    ("target", "parameters", "complaint"),
    [
        ("origin_of_f:g", (), "origin_of_f:g"),
        ("no_such_module:f", (), "no_such_module:f"),
        ("origin_of_f:f", ("a", "gone"), "no parameter gone; it has a, b"),
    ],
)
def test_a_changed_target_stops_with_its_name_and_nothing_is_hooked(
    modules, target, parameters, complaint
):
    original = modules[0].f
    with pytest.raises(HookError, match=complaint):
        apply([Hook("origin_of_f:f", ("a",), doubled), Hook(target, parameters, doubled)])
    assert modules[0].f is original


def all_of_megatron():
    """Every name of every module of Megatron that is imported, and the methods of its classes."""
    found = {}
    for module_name, module in list(sys.modules.items()):
        if module_name.split(".")[0] != "megatron" or module is None:
            continue
        for name, value in list(vars(module).items()):
            found[module_name, name] = id(value)
            if isinstance(value, type) and value.__module__.startswith("megatron"):
                found |= {(module_name, name, n): id(v) for n, v in vars(value).items()}
    return found


def changed(before):
    """Names that mean something else than before; names of modules imported since are new."""
    return [name for name, value in all_of_megatron().items() if before.get(name, value) != value]


def test_without_a_flag_of_ours_nothing_is_touched():
    import megatron.training  # noqa: F401

    before = all_of_megatron()
    assert len(before) > 5000
    assert install(["--num-layers", "4", "--pipeline-model-parallel-size", "2"]) == []
    assert changed(before) == []


@pytest.mark.parametrize("yaml", [("--yaml-cfg", "a.yaml"), ("--yaml-cfg=a.yaml",)])
def test_flags_that_megatron_would_drop_are_refused(yaml):
    """It reads all arguments from the file, and would train under its own schedule."""
    with pytest.raises(HanayoError, match="--yaml-cfg"):
        install(["--pipeline-schedule", "hanayo", *yaml])
    assert install(list(yaml)) == []


@pytest.fixture
def hooked():
    pipeline = Pipeline("hanayo", ScheduleSpec(pp=2, microbatches=4, waves=1))
    replacements = hook_megatron(pipeline)
    yield pipeline
    for replacement in reversed(replacements):
        replacement.undo()


def test_hooks_leave_megatron_as_it_was():
    import megatron.training  # noqa: F401

    before = all_of_megatron()
    replacements = hook_megatron(Pipeline("hanayo", ScheduleSpec(pp=2, microbatches=4)))
    hooked = changed(before)
    assert ("megatron.core.pipeline_parallel.utils", "is_pp_last_stage") in hooked
    assert ("megatron.core.models.common.language_module.language_module", "is_pp_last_stage") in (
        hooked
    )
    assert ("megatron.core.parallel_state", "initialize_model_parallel") in hooked
    for replacement in reversed(replacements):
        replacement.undo()
    assert changed(before) == []


def test_first_and_last_are_asked_of_the_stage_at_work(hooked, monkeypatch):
    """P=2, W=1: rank 0 holds stages 0 and 3, rank 1 holds stages 1 and 2."""
    first_rank = SimpleNamespace(rank=lambda: 0, size=lambda: 2)
    last_rank = SimpleNamespace(rank=lambda: 1, size=lambda: 2)
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)

    # With no stage at work Megatron's question is about the rank, as ever.
    assert utils.is_pp_last_stage(last_rank)
    assert not language_module.is_pp_last_stage(first_rank)
    with hooked.at_work(3):
        assert language_module.is_pp_last_stage(first_rank)
        assert not language_module.is_pp_first_stage(first_rank)
        assert parallel_state.is_pipeline_last_stage()
        with hooked.at_work(0):
            assert language_module.is_pp_first_stage(first_rank)
            assert not parallel_state.is_pipeline_last_stage()
        assert parallel_state.is_pipeline_last_stage()
    with hooked.at_work(2):
        assert not language_module.is_pp_last_stage(last_rank)
        assert not language_module.is_pp_first_stage(last_rank)
    assert utils.is_pp_last_stage(last_rank)


def test_chunks_know_their_stage_without_one_at_work(hooked, monkeypatch):
    answers = {}
    for rank in (0, 1):
        monkeypatch.setattr(parallel_state, "get_pipeline_model_parallel_rank", lambda r=rank: r)
        for chunk in (0, 1):
            answers[rank, chunk] = (
                parallel_state.is_pipeline_first_stage(ignore_virtual=False, vp_stage=chunk),
                parallel_state.is_pipeline_last_stage(ignore_virtual=False, vp_stage=chunk),
            )
    assert answers == {
        (0, 0): (True, False),
        (0, 1): (False, True),
        (1, 0): (False, False),
        (1, 1): (False, False),
    }


@pytest.mark.parametrize("several", ["add_encoder", "modality_submodules"])
def test_models_of_several_stacks_are_refused(hooked, monkeypatch, several):
    """T5 and LLaVA have an encoder beside the decoder, MIMO models a module a modality."""
    from megatron.training.models import dist_utils

    monkeypatch.setattr(parallel_state, "get_pipeline_model_parallel_rank", lambda: 0)

    class Several:
        def __init__(self):
            setattr(self, several, True)

    def one_chunk(build_model, pg_collection, vp_size):
        return [build_model(pg_collection, vp_stage=0)]

    (hook,) = [
        h for h in stage_hooks(hooked) if h.target.endswith(":build_virtual_pipeline_stages")
    ]
    assert dist_utils.build_virtual_pipeline_stages.hooked_by_hanayo_megatron
    with pytest.raises(ScheduleError, match="not Several, which has several"):
        hook.wrap(one_chunk)(lambda *a, **k: Several(), None, 2)


def test_theoretical_memory_counts_embedding_and_head_on_one_rank():
    """18 bytes a parameter; the most loaded rank of a wave has both ends of 1000 words of 8."""

    def original(args, verbose=False):
        return 18 * (500 + 8 * args.padded_vocab_size)

    (hook,) = memory_hooks(Pipeline("hanayo", ScheduleSpec(pp=2, microbatches=4)))
    args = SimpleNamespace(padded_vocab_size=1000)
    assert hook.wrap(original)(args, True) == 18 * (500 + 2 * 8 * 1000)
    assert args.padded_vocab_size == 1000
    assert memory_hooks(Pipeline("interleaved", ScheduleSpec(pp=2, microbatches=4))) == []
