"""Pretraining of two GPTs of different widths as one model, as distillation does.

Environment variable HANDS_ON: a stage hands on their hidden states `joined` into one tensor, or
as `several`, with the tokens and a state that has no gradient among them. The narrow one's
embeddings are part of the loss, so they go through all stages unchanged.
"""

import copy
import os
import sys

import torch
from megatron.core import parallel_state
from megatron.core.enums import ModelType
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.transformer import MegatronModule

from hanayo_megatron import gpt_training
from hanayo_megatron.run import errors_on_one_line, prepare

_NARROW = 32


class TwoWidths(MegatronModule):
    def __init__(self, config, *, pre_process, post_process, vp_stage, **more):
        super().__init__(config)
        self.pre_process, self.post_process, self.vp_stage = pre_process, post_process, vp_stage
        self.mtp_process = self.share_embeddings_and_output_weights = False
        narrow = copy.copy(config)
        narrow.hidden_size, narrow.ffn_hidden_size = _NARROW, 4 * _NARROW
        narrow.kv_channels = _NARROW // config.num_attention_heads
        self.wide, self.narrow = (
            GPTModel(
                config=part,
                transformer_layer_spec=get_gpt_layer_local_spec(),
                pre_process=pre_process,
                post_process=post_process,
                vp_stage=vp_stage,
                **more,
            )
            for part in (config, narrow)
        )
        self.pg_collection = self.wide.pg_collection
        self._taken = None

    def set_input_tensor(self, tensors):
        self._taken = None if tensors[0] is None else tensors
        if self._taken is not None:
            if len(tensors) == 1:
                self._taken = tensors[0].split((self.config.hidden_size, _NARROW, _NARROW), dim=-1)
            self.wide.set_input_tensor(self._taken[0])
            self.narrow.set_input_tensor(self._taken[1])

    def forward(self, tokens, position_ids, attention_mask, labels, loss_mask):
        wide, narrow = (
            part(tokens, position_ids, attention_mask, labels=labels, loss_mask=loss_mask)
            for part in (self.wide, self.narrow)
        )
        several = os.environ["HANDS_ON"] == "several"
        if self.pre_process:
            first = self.narrow.embedding(tokens, position_ids)
        else:
            first, *others = self._taken[2:]
            tokens = others[0] if several else None
        if self.post_process:
            if several:  # the first stage's tokens have come here
                assert torch.equal(labels[:, :-1], tokens[:, 1:])
            return wide + 0.5 * narrow + 0.1 * first.square().mean()
        if several:
            return [wide, narrow, first, tokens, narrow.detach()]
        return torch.cat([wide, narrow, first], dim=-1)


def _provide(pre_process=True, post_process=True, vp_stage=None, config=None, pg_collection=None):
    from megatron.training import get_args
    from megatron.training.arguments import core_transformer_config_from_args

    args = get_args()
    return TwoWidths(
        config or core_transformer_config_from_args(args),
        vocab_size=args.padded_vocab_size,
        max_sequence_length=args.max_position_embeddings,
        pre_process=pre_process,
        post_process=post_process,
        vp_stage=vp_stage,
        pg_collection=pg_collection,
    )


def _with_wider_shapes(original):
    """Megatron itself gives such a function for ModelOpt's distillation only."""

    def get_forward_backward_func(*args, **kwargs):
        schedule = original(*args, **kwargs)

        def widened(recv_shapes, send_shapes):
            return [
                [(*shape[:-1], shape[-1] + 2 * _NARROW) for shape in shapes]
                for shapes in (recv_shapes, send_shapes)
            ]

        def call(**step):
            is_told = os.environ["RANK"] != os.environ.get("UNTOLD_RANK")
            if parallel_state.get_pipeline_model_parallel_world_size() > 1 and is_told:
                step["adjust_tensor_shapes_fn"] = widened
            return schedule(**step)

        return call

    return get_forward_backward_func


def main(argv):
    sys.argv[1:] = prepare(argv)
    from megatron.training import pretrain, training
    from megatron.training.argument_utils import pretrain_cfg_container_from_args
    from megatron.training.arguments import parse_and_validate_args

    args = parse_and_validate_args()
    training.get_forward_backward_func = _with_wider_shapes(training.get_forward_backward_func)
    pretrain(
        pretrain_cfg_container_from_args(args),
        gpt_training.build_datasets,
        ModelType.encoder_or_decoder,
        gpt_training.forward_step,
        model_provider=_provide,
    )


if __name__ == "__main__":
    with errors_on_one_line():
        main(sys.argv[1:])
