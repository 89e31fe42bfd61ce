"""Pretraining of Megatron's BertModel: every seventh token is hidden, and a yes or no is told.

Built by a model provider, as the scripts of Megatron's users do.
"""

import sys
from functools import partial

import torch
from megatron.core.enums import ModelType
from megatron.core.models.bert.bert_layer_specs import bert_layer_local_spec
from megatron.core.models.bert.bert_model import BertModel
from megatron.core.utils import get_attr_wrapped_model

from hanayo_megatron import gpt_training
from hanayo_megatron.run import errors_on_one_line, prepare

_EVERY, _HIDDEN = 7, 3
_PADDING = 5


def _provide(pre_process=True, post_process=True, vp_stage=None, config=None, pg_collection=None):
    from megatron.training import get_args
    from megatron.training.arguments import core_transformer_config_from_args

    args = get_args()
    return BertModel(
        config=config or core_transformer_config_from_args(args),
        num_tokentypes=0,
        transformer_layer_spec=bert_layer_local_spec,
        vocab_size=args.padded_vocab_size,
        max_sequence_length=args.max_position_embeddings,
        pre_process=pre_process,
        post_process=post_process,
        share_embeddings_and_output_weights=True,
        vp_stage=vp_stage,
        pg_collection=pg_collection,
    )


def _forward_step(data_iterator, model):
    from megatron.training import get_args

    args = get_args()
    is_end = get_attr_wrapped_model(model, "pre_process") or get_attr_wrapped_model(
        model, "post_process"
    )
    attention = torch.ones(args.micro_batch_size, args.seq_length)
    attention[:, -_PADDING:] = 0
    if not is_end:
        return model(None, attention), None
    tokens = next(data_iterator)["tokens"]
    hidden = (torch.arange(args.seq_length) % _EVERY == _HIDDEN).expand_as(tokens)
    output = model(tokens.masked_fill(hidden, 0), attention, lm_labels=tokens)
    return output, partial(_loss, hidden.float() * attention, tokens.sum(dim=1) % 2)


def _loss(mask, answers, output):
    token_losses, binary_logits = output
    lm_loss = (token_losses.float() * mask).sum() / mask.sum()
    answer_loss = torch.nn.functional.cross_entropy(binary_logits.float(), answers)
    report = {"lm loss": lm_loss.detach().clone(), "sop loss": answer_loss.detach().clone()}
    return lm_loss + answer_loss, report


def main(argv):
    sys.argv[1:] = prepare(argv)
    from megatron.training import pretrain
    from megatron.training.argument_utils import pretrain_cfg_container_from_args
    from megatron.training.arguments import parse_and_validate_args

    args = parse_and_validate_args()
    pretrain(
        pretrain_cfg_container_from_args(args),
        gpt_training.build_datasets,
        ModelType.encoder_or_decoder,
        _forward_step,
        model_provider=_provide,
    )


if __name__ == "__main__":
    with errors_on_one_line():
        main(sys.argv[1:])
