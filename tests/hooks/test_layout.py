"""Layers land on the stages, ranks and chunks that a placement names."""

import pytest
from megatron.core import parallel_state
from megatron.core.transformer.enums import LayerType

from hanayo_megatron.megatron.layout import placement_layout
from hanayo_megatron.megatron.split import layout_string
from hanayo_megatron.schedule.placement import Placement, linear, looped, wave


@pytest.fixture
def chunks(monkeypatch):
    """Pretend a number of chunks a rank, without any process group."""

    def pretend(count):
        size = None if count == 1 else count
        monkeypatch.setattr(
            parallel_state, "get_virtual_pipeline_model_parallel_world_size", lambda: size
        )

    return pretend


PLACEMENTS = [
    wave(2, 1),
    wave(2, 3),
    wave(4, 2),
    looped(4, 2),
    Placement(3, (2, 0, 1, 1, 2, 0)),
    Placement(2, (0, 0, 1, 1)),
    Placement(3, (1, 2, 0)),
    linear(4),
]


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_every_layer_once_and_in_stage_order(placement, chunks):
    num_chunks = len(placement.stages_of[0])
    chunks(num_chunks)
    num_layers = placement.num_stages * 3
    layout = placement_layout(placement)(
        layout_string([3] * placement.num_stages), placement.num_ranks
    )
    assert layout.validate_layer_layout(num_layers, None) is False
    found = {}
    for rank in range(placement.num_ranks):
        for chunk in range(num_chunks):
            stage = placement.stages_of[rank][chunk]
            found[stage] = layout.get_layer_id_list(vp_stage=chunk, pp_rank=rank)
            held = layout.layout[rank][chunk]
            assert (LayerType.embedding in held) == (stage == 0)
            assert (LayerType.loss in held) == (stage == placement.num_stages - 1)
    assert [n for stage in sorted(found) for n in found[stage]] == list(range(num_layers))
    assert found[1] == [3, 4, 5]


def test_uneven_layout_in_stage_order(chunks):
    chunks(2)
    layout = placement_layout(wave(2, 1))("Ettt|t|tt|L", 2)
    numbers = {
        (rank, chunk): layout.get_layer_id_list(vp_stage=chunk, pp_rank=rank)
        for rank in (0, 1)
        for chunk in (0, 1)
    }
    # Stage 0 is rank 0, stages 1 and 2 are rank 1, stage 3 is rank 0 again.
    assert numbers == {(0, 0): [0, 1, 2], (1, 0): [3], (1, 1): [4, 5], (0, 1): []}


def test_megatrons_parser_reads_the_layout_by_our_class():
    layout_class = placement_layout(wave(2, 1))
    layout = layout_class.from_str("Et|t|t|tL", 2)
    assert isinstance(layout, layout_class)
    assert layout.layout[1] == [[LayerType.decoder], [LayerType.decoder]]
    assert repr(layout) == "Et|t|t|tL"
    assert layout.virtual_pipeline_model_parallel_size == 2
