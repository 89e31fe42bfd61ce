"""Pretraining of a hybrid model of attention and MLP layers.

Its layers are Megatron's for CPUs: those of the default specification need Transformer Engine.
"""

import sys
from functools import partial

from megatron.core.enums import ModelType
from megatron.core.fusions.fused_bias_dropout import get_bias_dropout_add
from megatron.core.models.hybrid import hybrid_block
from megatron.core.models.hybrid.hybrid_block import HybridStack, HybridStackSubmodules
from megatron.core.ssm.mlp_layer import MLPLayer
from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
from megatron.core.transformer.attention import SelfAttention, SelfAttentionSubmodules
from megatron.core.transformer.dot_product_attention import DotProductAttention
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.mlp import MLP, MLPSubmodules
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.torch_norm import WrappedTorchNorm
from megatron.core.transformer.transformer_layer import TransformerLayer, TransformerLayerSubmodules

from hanayo_megatron import gpt_training
from hanayo_megatron.run import errors_on_one_line, prepare

_LAYERS = ModuleSpec(
    module=HybridStack,
    submodules=HybridStackSubmodules(
        attention_layer=ModuleSpec(
            module=TransformerLayer,
            submodules=TransformerLayerSubmodules(
                input_layernorm=WrappedTorchNorm,
                self_attention=ModuleSpec(
                    module=SelfAttention,
                    params={"attn_mask_type": AttnMaskType.causal},
                    submodules=SelfAttentionSubmodules(
                        linear_qkv=ColumnParallelLinear,
                        core_attention=DotProductAttention,
                        linear_proj=RowParallelLinear,
                    ),
                ),
                self_attn_bda=get_bias_dropout_add,
            ),
        ),
        mlp_layer=ModuleSpec(
            module=MLPLayer,
            submodules=TransformerLayerSubmodules(
                pre_mlp_layernorm=WrappedTorchNorm,
                mlp=partial(
                    MLP.as_mlp_submodule,
                    submodules=MLPSubmodules(
                        linear_fc1=ColumnParallelLinear, linear_fc2=RowParallelLinear
                    ),
                ),
                mlp_bda=get_bias_dropout_add,
            ),
        ),
    ),
)


def main(argv):
    sys.argv[1:] = prepare(argv)
    from megatron.training import pretrain
    from megatron.training.argument_utils import (
        hybrid_config_from_args,
        pretrain_cfg_container_from_args,
    )
    from megatron.training.arguments import parse_and_validate_args

    hybrid_block.TENorm = WrappedTorchNorm
    args = parse_and_validate_args()
    config = hybrid_config_from_args(args)
    config.hybrid_stack_spec = _LAYERS
    pretrain(
        pretrain_cfg_container_from_args(args, config),
        gpt_training.build_datasets,
        ModelType.encoder_or_decoder,
        gpt_training.forward_step,
        get_embedding_ranks=gpt_training.embedding_ranks,
    )


if __name__ == "__main__":
    with errors_on_one_line():
        main(sys.argv[1:])
