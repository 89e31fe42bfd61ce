"""Ranks compare what they are about to do, or all of them stop."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from datetime import timedelta

import torch.distributed as dist

from hanayo_megatron.errors import HanayoError

_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0
_MORE_PAUSE = 1.2
_MOST_DIFFERENCES = 5


class DisagreementError(HanayoError, RuntimeError):
    """Ranks were about to do different things."""


def agree(
    store: dist.Store,
    *,
    rank: int,
    num_ranks: int,
    fields: Mapping[str, str],
    patience: float,
) -> None:
    """Return once all ranks have given the same fields.

    Needs the store only, so it works where collectives would hang. Rank 0 reads the fields of all
    ranks and tells them what it found.

    Args:
        store: shared by all ranks, used by nobody else under these keys.
        fields: by name, in the order in which differences are told.
        patience: seconds that a rank waits for the others.

    Raises DisagreementError on every rank: naming the fields that differ and which rank has what,
    or the ranks that did not take part.
    """
    store.set(_key(rank), json.dumps(dict(fields)))
    deadline = time.monotonic() + patience
    if rank == 0:
        missing = _missing(store, list(range(num_ranks)), deadline)
        found = _absent(missing, patience) if missing else _differences(store, num_ranks)
        store.set("verdict", found)
    elif _wait_for_verdict(store, deadline, patience):
        found = store.get("verdict").decode()
        store.add("read", 1)
    else:
        found = _absent([0], patience)
    if not found:
        return
    if rank == 0:  # which may hold the store: stay until the others have read it
        readers, until = num_ranks - 1 - len(missing), time.monotonic() + 5
        while store.add("read", 0) < readers and time.monotonic() < until:
            time.sleep(_FIRST_PAUSE)
    raise DisagreementError(found)


def _key(rank: int) -> str:
    return f"fields/{rank}"


def _missing(store: dist.Store, ranks: list[int], deadline: float) -> list[int]:
    if _wait_for_keys(store, [_key(rank) for rank in ranks], deadline):
        return []
    return [rank for rank in ranks if not store.check([_key(rank)])]


def _wait_for_verdict(store: dist.Store, deadline: float, patience: float) -> bool:
    """Rank 0 may have come later, and waits for the others from then on."""
    here = _wait_for_keys(store, [_key(0)], deadline)
    return here and _wait_for_keys(store, ["verdict"], time.monotonic() + patience + 2)


def _wait_for_keys(store: dist.Store, keys: list[str], deadline: float) -> bool:
    """Ask less and less often: one store serves thousands of ranks.

    The store's own ``wait`` would hold up Ctrl-C, and writes lines of its own when time is up.
    """
    pause = _FIRST_PAUSE
    while not store.check(keys):
        now = time.monotonic()
        if now > deadline:
            return False
        time.sleep(min(pause, max(_FIRST_PAUSE, deadline - now)))
        pause = min(pause * _MORE_PAUSE, _LONGEST_PAUSE)
    return True


def _absent(ranks: list[int], patience: float) -> str:
    return (
        f"{_of_ranks(ranks)} did not take part in comparing the plan of this training within "
        f"{timedelta(seconds=round(patience))}. Start every rank with the same command line: was "
        "--pipeline-schedule missing there, or did the rank end?"
    )


def _differences(store: dist.Store, num_ranks: int) -> str:
    given = [json.loads(text) for text in store.multi_get([_key(r) for r in range(num_ranks)])]
    names = dict.fromkeys(name for fields in given for name in fields)
    told = []
    for name in names:
        values: dict[str, list[int]] = {}
        for rank, fields in enumerate(given):
            values.setdefault(fields.get(name, "nothing"), []).append(rank)
        if len(values) > 1:
            who = "; ".join(f"{value} on {_of_ranks(ranks)}" for value, ranks in values.items())
            told.append(f"{name}: {who}")
    if not told:
        return ""
    more = f" (and {len(told) - _MOST_DIFFERENCES} more)" if len(told) > _MOST_DIFFERENCES else ""
    return (
        f"ranks disagree on {' | '.join(told[:_MOST_DIFFERENCES])}{more}. Start every rank with "
        "the same command line and the same versions"
    )


def _of_ranks(ranks: list[int]) -> str:
    shown = ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}"
