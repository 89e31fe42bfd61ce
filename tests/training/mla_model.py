"""The pretraining entry with multi-latent attention on CPUs.

Megatron's MLASelfAttention names the sizes of keys and values to its core attention, which of
Megatron's own classes only that of Transformer Engine takes; the local one gets them here.
"""

import sys

from megatron.core.models import backends
from megatron.core.transformer.dot_product_attention import DotProductAttention

from hanayo_megatron import pretrain_gpt
from hanayo_megatron.run import errors_on_one_line


class _SizedAttention(DotProductAttention):
    def __init__(self, *args, k_channels=None, v_channels=None, **kwargs):
        super().__init__(*args, **kwargs)
        if k_channels is None:
            return  # built once more, with sizes
        self.hidden_size_per_partition = v_channels * self.num_attention_heads_per_partition
        self.softmax_scale = k_channels**-0.5


if __name__ == "__main__":
    backends.DotProductAttention = _SizedAttention
    with errors_on_one_line():
        pretrain_gpt.main(sys.argv[1:])
