"""Megatron's layer layout with stages where the placement puts them."""

from __future__ import annotations

from functools import cache

from megatron.core import parallel_state
from megatron.core.transformer.enums import LayerType
from megatron.core.transformer.pipeline_parallel_layer_layout import PipelineParallelLayerLayout

from hanayo_megatron.schedule.placement import Placement


def placement_layout(placement: Placement) -> type[PipelineParallelLayerLayout]:
    """Megatron's layout class, reading layouts in stage order and placing them by ``placement``."""

    class PlacementLayout(PipelineParallelLayerLayout):
        """``layout[rank][chunk]`` holds the layers of the stage that the placement puts there."""

        def __init__(self, layout: str | list, pipeline_model_parallel_size: int) -> None:
            super().__init__(layout, pipeline_model_parallel_size)
            looped = self.layout
            stages = [
                looped[rank][chunk]
                for chunk in range(self.virtual_pipeline_model_parallel_size)
                for rank in range(pipeline_model_parallel_size)
            ]
            self.stages = stages
            self.layout = [
                [stages[placement.model_stage_of(s)] for s in held] for held in placement.stages_of
            ]
            self.virtual_pipeline_model_parallel_size = len(self.layout[0])

        def validate_layer_layout(self, num_layers: int, mtp_num_layers: int) -> bool:
            super().validate_layer_layout(num_layers, mtp_num_layers)
            return False  # Megatron takes a last stage away from the last rank for standalone MTP

        def get_layer_offset(
            self,
            layer_type: LayerType = LayerType.decoder,
            vp_stage: int | None = None,
            pp_rank: int | None = None,
        ) -> int:
            if pp_rank is None:
                pp_rank = parallel_state.get_pipeline_model_parallel_rank()
            stage = placement.model_stage_of(placement.stages_of[pp_rank][vp_stage or 0])
            return sum(layers.count(layer_type) for layers in self.stages[:stage])

        @staticmethod
        @cache
        def from_str(layout: str, pipeline_model_parallel_size: int) -> PlacementLayout:
            return PlacementLayout(layout, pipeline_model_parallel_size)

    return PlacementLayout
