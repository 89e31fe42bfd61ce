"""Mirror ranks hold the same pieces of the model in the same order of chunks."""

import pytest
from megatron.core import parallel_state
from megatron.core.transformer.enums import LayerType

from hanayo_megatron.megatron.layout import placement_layout
from hanayo_megatron.megatron.split import layout_string
from hanayo_megatron.schedule.placement import bidirectional


@pytest.mark.parametrize("num_ranks", [2, 4, 8])
def test_chunks_of_mirror_ranks(num_ranks, monkeypatch):
    monkeypatch.setattr(parallel_state, "get_virtual_pipeline_model_parallel_world_size", lambda: 2)
    placement = bidirectional(num_ranks)
    num_layers = 3 * num_ranks
    layout = placement_layout(placement)(
        layout_string([num_layers // num_ranks] * num_ranks), num_ranks
    )
    assert layout.validate_layer_layout(num_layers, None) is False
    assert layout.virtual_pipeline_model_parallel_size == 2
    held = [
        [layout.get_layer_id_list(vp_stage=chunk, pp_rank=rank) for chunk in (0, 1)]
        for rank in range(num_ranks)
    ]
    assert held == held[::-1]
    for rank, (early, late) in enumerate(held):
        assert early[-1] < late[0]
        piece = min(rank, num_ranks - 1 - rank)
        assert early == list(range(3 * piece, 3 * piece + 3))
        assert late == [num_layers - 1 - layer for layer in reversed(early)]
        ends = [
            LayerType.embedding in layout.layout[rank][0],
            LayerType.loss in layout.layout[rank][1],
        ]
        assert ends == [rank in (0, num_ranks - 1)] * 2
    # Both ends of a copy are the first and the last chunk of their ranks, as Megatron expects.
    assert placement.chunk_of[0] == placement.chunk_of[num_ranks] == 0
    assert placement.chunk_of[num_ranks - 1] == placement.chunk_of[-1] == 1
    assert placement.last_ranks == (num_ranks - 1, 0)
