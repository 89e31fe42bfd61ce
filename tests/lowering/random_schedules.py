"""Legal schedules with random placements and orders."""

from hanayo_megatron.schedule import Action, Kind, Placement, Schedule


def random_schedule(rng, *, max_ranks=6, max_stages=12, max_microbatches=8):
    """Any map of stages to ranks, one or two replicas, any order that respects dependencies."""
    ranks = rng.randint(1, max_ranks)
    replicas = rng.choice((1, 1, 2))
    model_stages = rng.randint(1, max_stages)
    rank_of = tuple(rng.randrange(ranks) for _ in range(model_stages * replicas))
    placement = Placement(ranks, rank_of, replicas)
    microbatches = rng.randint(1, max_microbatches)
    splits = rng.random() < 0.5

    orders = [[] for _ in range(ranks)]
    ready = [
        Action(replica * model_stages, Kind.F, m)
        for replica, share in enumerate(placement.split_microbatches(microbatches))
        for m in share
    ]
    while ready:
        action = ready.pop(rng.randrange(len(ready)))
        stage, kind, microbatch = action
        orders[rank_of[stage]].append(action)
        backward = Kind.I if splits and rng.random() < 0.7 else Kind.B
        if kind is Kind.F:
            if placement.is_last(stage):
                ready.append(Action(stage, backward, microbatch))
            else:
                ready.append(Action(stage + 1, Kind.F, microbatch))
        elif kind is not Kind.W:
            if kind is Kind.I:
                ready.append(Action(stage, Kind.W, microbatch))
            if not placement.is_first(stage):
                ready.append(Action(stage - 1, backward, microbatch))
    return Schedule("random", placement, microbatches, tuple(map(tuple, orders)))
