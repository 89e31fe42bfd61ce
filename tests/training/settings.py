"""The settings of Megatron that training under other schedules is held against."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Flags of one training.

    Args:
        flags: of the training, not of the model.
        model: flags that decide which weights there are.
        ranks: processes; ``pp`` of them hold one copy of the model.
        model_module: what is run, and makes the checkpoint that all start from.
        module: what is run instead of it from the checkpoint on.
        reference: flags of the plain run that this one must equal; None: ``flags``.
        shows: values that Megatron must log, other than 0.
        skipped: how many of the iterations Megatron leaves out.
    """

    flags: tuple[str, ...] = ()
    model: tuple[str, ...] = ()
    pp: int = 2
    ranks: int = 2
    layers: int = 8
    microbatches: int = 4
    iterations: int = 3
    model_module: str = "hanayo_megatron.pretrain_gpt"
    module: str | None = None
    environment: tuple[tuple[str, str], ...] = ()
    reference: tuple[str, ...] | None = None
    shows: tuple[str, ...] = ()
    skipped: int = 0

    @property
    def plain(self) -> Setting:
        """What Megatron's own schedule runs; the same one for all settings that share it."""
        flags = self.flags if self.reference is None else self.reference
        return replace(self, flags=flags, reference=None)


DISTRIBUTED = ("--use-distributed-optimizer",)
GRADIENTS = ("--overlap-grad-reduce",)
PARAMETERS = (*DISTRIBUTED, *GRADIENTS, "--overlap-param-gather")
MOE = (
    *("--num-experts", "4", "--moe-router-topk", "2", "--moe-ffn-hidden-size", "64"),
    *("--moe-router-load-balancing-type", "aux_loss", "--moe-aux-loss-coeff", "0.01"),
    "--disable-bias-linear",
)
AUX = ("load_balancing_loss",)
EXPERTS_2 = ("--expert-model-parallel-size", "2")
MLA = (
    *("--multi-latent-attention", "--q-lora-rank", "16", "--kv-lora-rank", "16"),
    *("--qk-head-dim", "16", "--qk-pos-emb-head-dim", "8", "--v-head-dim", "16"),
    *("--position-embedding-type", "rope", "--rotary-scaling-factor", "1"),
)
MTP = (*("--mtp-num-layers", "2", "--position-embedding-type", "rope"),)
MASKED = "training.masked_tokens"
FP16 = ("--fp16", "--initial-loss-scale", "262144", "--loss-scale-window", "2", "--hysteresis", "1")


def _replicated(*flags: str, reference: tuple[str, ...] = (), **more: object) -> Setting:
    """Two data-parallel replicas of two ranks."""
    return Setting(flags=flags, reference=reference, ranks=4, microbatches=8, iterations=4, **more)


SETTINGS = {
    "tensor-parallel": Setting(flags=("--tensor-model-parallel-size", "2"), ranks=4),
    "dp": _replicated(),
    "dp-outside-of-pp": _replicated("--use-tp-pp-dp-mapping", "--no-overlap-p2p-communication"),
    "dp-overlap-grad-reduce": _replicated(*GRADIENTS),
    "dp-no-align-grad-reduce": _replicated(*GRADIENTS, "--no-align-grad-reduce"),
    "dp-distributed-optimizer": _replicated(*DISTRIBUTED, reference=DISTRIBUTED),
    "dp-distributed-optimizer-grads": _replicated(*DISTRIBUTED, *GRADIENTS, reference=DISTRIBUTED),
    "dp-overlap-param-gather": _replicated(*PARAMETERS, reference=DISTRIBUTED),
    "dp-no-align-param-gather": _replicated(
        *PARAMETERS, "--no-align-param-gather", reference=DISTRIBUTED
    ),
    "dp-no-align": _replicated(
        *PARAMETERS, "--no-align-param-gather", "--no-align-grad-reduce", reference=DISTRIBUTED
    ),
    "dp-unequal-tokens": _replicated(
        *PARAMETERS,
        "--calculate-per-token-loss",
        reference=(*DISTRIBUTED, "--calculate-per-token-loss"),
        module=MASKED,
    ),
    "expert-parallel-allgather": Setting(
        flags=(*EXPERTS_2, "--moe-token-dispatcher-type", "allgather"),
        model=MOE,
        ranks=4,
        shows=AUX,
    ),
    "expert-parallel-alltoall": Setting(
        flags=(*EXPERTS_2, "--moe-token-dispatcher-type", "alltoall"), model=MOE, ranks=4, shows=AUX
    ),
    "moe": Setting(model=MOE, shows=AUX),
    "bf16": Setting(flags=("--bf16",)),
    "fp16-overflow": Setting(
        flags=FP16, iterations=6, shows=("number of skipped iterations", "lm loss")
    ),
    "recompute-full": Setting(
        flags=(
            *("--recompute-granularity", "full", "--recompute-method", "uniform"),
            *("--recompute-num-layers", "1"),
        )
    ),
    "recompute-selective": Setting(flags=("--recompute-granularity", "selective")),
    "unequal-tokens": Setting(module=MASKED),
    "per-token-loss": Setting(flags=("--calculate-per-token-loss",), module=MASKED),
    "two-tuple-loss": Setting(module=MASKED, environment=(("LOSS_RETURNS", "2"),)),
    "two-schedule-calls": Setting(module="training.two_calls"),
    "batch-ramp-up": Setting(
        flags=("--rampup-batch-size", "1", "1", "12"), microbatches=4, iterations=7
    ),
    "fewer-microbatches-than-ranks": Setting(microbatches=3, pp=4, ranks=4, layers=16),
    "one-microbatch": Setting(microbatches=1),
    "skipped-steps": Setting(flags=("--iterations-to-skip", "2", "4"), iterations=5, skipped=2),
    "larger-microbatches": Setting(flags=("--micro-batch-size", "2"), microbatches=6),
    "gqa-rope-swiglu-rmsnorm": Setting(
        model=(
            *("--group-query-attention", "--num-query-groups", "2"),
            *("--position-embedding-type", "rope", "--swiglu", "--normalization", "RMSNorm"),
            *("--disable-bias-linear", "--untie-embeddings-and-output-weights"),
        )
    ),
    "mla": Setting(model=MLA, model_module="training.mla_model"),
    "frozen-layers": Setting(module="training.frozen_layers"),
    "untied": Setting(model=("--untie-embeddings-and-output-weights",)),
    # Tied, Megatron 0.19.2 can neither save nor load it at PP > 1 (language_module.py:497).
    "mtp": Setting(
        model=(*MTP, "--untie-embeddings-and-output-weights"),
        shows=("mtp_1 loss", "mtp_2 loss"),
    ),
    "hybrid": Setting(
        model=("--hybrid-layer-pattern", "*-*--*-*"), model_module="training.hybrid_model"
    ),
    "bert": Setting(model=("--attention-backend", "auto"), model_module="training.bert_model"),
    "uneven": Setting(layers=10),
    "account-for-ends": Setting(
        flags=(
            "--account-for-embedding-in-pipeline-split",
            "--account-for-loss-in-pipeline-split",
        ),
        reference=(),
        layers=14,
    ),
}
