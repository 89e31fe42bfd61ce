"""The backward of a stage that takes and hands on several tensors, whose data may be freed."""

from types import SimpleNamespace

import torch

from hanayo_megatron.megatron.several_tensors import backward, free

CONFIG = SimpleNamespace(timers=None, grad_scale_func=None, deallocate_pipeline_outputs=True)


def test_every_tensor_that_needs_a_gradient_gets_its_own():
    hidden, scale, unused = (torch.randn(3, requires_grad=True) for _ in range(3))
    order = torch.tensor([2, 0, 1])
    weight = torch.randn(3, requires_grad=True)
    constant = torch.ones(3)
    output = ((hidden * weight)[order], hidden, scale * 2, order, constant)
    gradients = tuple(torch.randn(3) for _ in range(4))  # order has none
    free(output, CONFIG)

    first, passed, doubled, _ = gradients
    found = backward((hidden, scale, order, unused), output, gradients, CONFIG)
    back = first[order.argsort()]
    torch.testing.assert_close(found[0], back * weight.detach() + passed)
    torch.testing.assert_close(found[1], 2 * doubled)
    assert torch.equal(found[2], torch.zeros(3))
    assert len(found) == 3
    torch.testing.assert_close(weight.grad, back * hidden.detach())


def test_data_are_freed_that_only_the_backward_needs():
    given = torch.randn(3, requires_grad=True)
    made, constant = given * 2, torch.ones(3)
    free((made, made[:2], given, constant), CONFIG)
    assert made.numel() == 1
    assert given.numel() == constant.numel() == 3
    kept = given * 2
    free((kept,), SimpleNamespace(deallocate_pipeline_outputs=False))
    assert kept.numel() == 3


def test_a_loss_of_several_inputs_is_scaled():
    one, two = (torch.tensor(value, requires_grad=True) for value in (2.0, 3.0))
    config = SimpleNamespace(timers=None, grad_scale_func=lambda loss: 10 * loss)
    assert backward((one, two), one * two, None, config) == (30.0, 20.0)
