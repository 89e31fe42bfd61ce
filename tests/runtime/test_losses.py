"""Losses reach the rank that logs; a structure that was sent before is not sent again."""

import pytest
import torch
from gloo_processes import run_ranks
from loss_processes import losses_of, move_from_two, move_losses


def equal(one, other):
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and one.shape == other.shape and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return type(one) is type(other) and len(one) == len(other) and all(map(equal, one, other))
    return one == other


@pytest.mark.parametrize(("source", "target"), [(0, 2), (2, 1)])
def test_values_arrive_with_their_types_and_without_headers_from_the_second_time_on(source, target):
    results = run_ranks(move_losses, 3, source, target, timeout=120)
    for step, (got, messages) in zip((1, 1, 2, 1, 2), results[target], strict=True):
        assert equal(got, losses_of(step))
        assert results[source][0][0] == []
        assert messages[0] == 16, "the digest of the structure"
    counts = [[len(messages) for _, messages in results[rank]] for rank in (source, target)]
    # A digest and a message for each dtype; a new structure takes two messages more.
    assert counts == [[1 + 2 + 2, 1 + 2, 1 + 3 + 2, 1 + 2, 1 + 3]] * 2
    bystander = ({0, 1, 2} - {source, target}).pop()
    assert results[bystander] == [([], [])] * 5


def test_each_pair_of_ranks_remembers_the_last_few_structures_that_went_between_the_two():
    results = run_ranks(move_from_two, 3, timeout=60)
    steps, remembered = results[2]
    assert steps == [[(10 * step, step), (10 * step + 1, step)] for step in range(20)]
    assert remembered == 2 * 8
    assert [count for _, count in results[:2]] == [8, 8]
