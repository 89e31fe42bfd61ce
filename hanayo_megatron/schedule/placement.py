"""Which rank holds which stage of the model."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class Placement:
    """Maps every stage id to one rank.

    A replicated pipeline (Chimera) gives each copy its own stage ids: with ``replicas=2`` and 2S
    ids, id ``S + s`` is the second copy of stage ``s``.

    Args:
        num_ranks: P, the size of the pipeline-parallel group.
        rank_of: rank of each stage id, in forward order.
        replicas: D, how many copies of the model the pipeline holds.
    """

    num_ranks: int
    rank_of: tuple[int, ...]
    replicas: int = 1

    def __post_init__(self) -> None:
        if self.num_ranks < 1:
            raise ValueError(f"a placement needs at least one rank, got {self.num_ranks}")
        if not self.rank_of or len(self.rank_of) % self.replicas:
            raise ValueError(
                f"{len(self.rank_of)} stages cannot be {self.replicas} copies of one model"
            )
        for stage, rank in enumerate(self.rank_of):
            if not 0 <= rank < self.num_ranks:
                raise ValueError(
                    f"stage {stage} is placed on rank {rank}; ranks are 0..{self.num_ranks - 1}"
                )

    @property
    def num_stages(self) -> int:
        """Number of stage ids, over all replicas."""
        return len(self.rank_of)

    @property
    def model_stages(self) -> int:
        """S: number of pieces that one copy of the model is cut into."""
        return len(self.rank_of) // self.replicas

    @cached_property
    def stages_of(self) -> tuple[tuple[int, ...], ...]:
        """Stage ids of each rank in the order of the model: position n is the rank's chunk n.

        So ranks that mirror each other in a replicated pipeline hold the same pieces of the model
        in the same order of chunks, whichever replica a chunk belongs to.
        """
        stages: list[list[int]] = [[] for _ in range(self.num_ranks)]
        for stage in sorted(range(self.num_stages), key=self.model_stage_of):
            stages[self.rank_of[stage]].append(stage)
        return tuple(map(tuple, stages))

    @cached_property
    def chunk_of(self) -> tuple[int, ...]:
        """Chunk index of each stage id on its rank."""
        chunks = {s: n for stages in self.stages_of for n, s in enumerate(stages)}
        return tuple(chunks[s] for s in range(self.num_stages))

    def replica_of(self, stage: int) -> int:
        return stage // self.model_stages

    def model_stage_of(self, stage: int) -> int:
        """Which piece of the model the stage id is, 0..S-1."""
        return stage % self.model_stages

    def split_microbatches(self, num_microbatches: int) -> tuple[tuple[int, ...], ...]:
        """Microbatches of each replica when they take turns: replica d reads d, d+D, d+2D, ..."""
        return tuple(tuple(range(d, num_microbatches, self.replicas)) for d in range(self.replicas))

    def is_first(self, stage: int) -> bool:
        """Whether the stage reads the data."""
        return stage % self.model_stages == 0

    def is_last(self, stage: int) -> bool:
        """Whether the stage computes the loss."""
        return stage % self.model_stages == self.model_stages - 1

    @property
    def last_ranks(self) -> tuple[int, ...]:
        """Ranks that compute a loss, one of each replica."""
        depth = self.model_stages
        return tuple(self.rank_of[depth - 1 :: depth])

    def is_turn(self, stage: int) -> bool:
        """Whether the stage's output stays on its rank (no transfer to the next stage)."""
        return not self.is_last(stage) and self.rank_of[stage] == self.rank_of[stage + 1]


def linear(num_ranks: int) -> Placement:
    """One stage a rank, in order: GPipe, 1F1B."""
    return Placement(num_ranks, tuple(range(num_ranks)))


def looped(num_ranks: int, chunks: int) -> Placement:
    """Chunk c of rank r is stage cP + r: interleaved 1F1B, breadth-first."""
    return Placement(num_ranks, tuple(range(num_ranks)) * chunks)


def wave(num_ranks: int, waves: int) -> Placement:
    """Down the ranks and back up, ``waves`` times: 2WP stages (Hanayo, section 3)."""
    down = tuple(range(num_ranks))
    return Placement(num_ranks, (down + down[::-1]) * waves)


def bidirectional(num_ranks: int) -> Placement:
    """Two copies of the model: one down the ranks, one up (Chimera)."""
    down = tuple(range(num_ranks))
    return Placement(num_ranks, down + down[::-1], replicas=2)
