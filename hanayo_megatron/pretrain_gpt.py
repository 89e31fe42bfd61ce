"""Trains a GPT: `torchrun ... -m hanayo_megatron.pretrain_gpt <Megatron's arguments>`.

No Megatron wheel has a pretrain_gpt.py; this one needs no checkout. Besides Megatron's own
arguments it knows `--cpu` and the group "pipeline schedule" (see `--help`).
"""

from __future__ import annotations

import sys

from hanayo_megatron.run import errors_on_one_line, prepare


def main(argv: list[str]) -> None:
    """Train as `argv` (the arguments without the program's name) say."""
    sys.argv[1:] = prepare(argv)
    from megatron.core.enums import ModelType
    from megatron.training import pretrain
    from megatron.training.argument_utils import (
        gpt_config_from_args,
        pretrain_cfg_container_from_args,
    )
    from megatron.training.arguments import parse_and_validate_args

    from hanayo_megatron import gpt_training

    args = parse_and_validate_args()
    gpt_training.check_supported(args)
    pretrain(
        pretrain_cfg_container_from_args(args, gpt_config_from_args(args)),
        gpt_training.build_datasets,
        ModelType.encoder_or_decoder,
        gpt_training.forward_step,
        get_embedding_ranks=gpt_training.embedding_ranks,
    )


if __name__ == "__main__":
    with errors_on_one_line():
        main(sys.argv[1:])
