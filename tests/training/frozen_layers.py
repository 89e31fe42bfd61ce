"""The pretraining entry with the attention of every even layer frozen."""

import sys

from megatron.core.transformer.transformer_layer import TransformerLayer

from hanayo_megatron import pretrain_gpt
from hanayo_megatron.run import errors_on_one_line

_plain_init = TransformerLayer.__init__


def _init(self, *args, **kwargs):
    _plain_init(self, *args, **kwargs)
    for name, weight in self.named_parameters():
        if self.layer_number % 2 == 0 and name.startswith("self_attention"):
            weight.requires_grad = False


if __name__ == "__main__":
    TransformerLayer.__init__ = _init
    with errors_on_one_line():
        pretrain_gpt.main(sys.argv[1:])
