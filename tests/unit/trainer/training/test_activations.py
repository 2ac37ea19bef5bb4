"""Activation memory: the bytes that autograd saves for the backward pass."""

from __future__ import annotations

import torch
from torch import nn

from trainer.training.memory import Activations


def test_each_storage_counts_once_and_weights_do_not_count() -> None:
    # Saved: the first layer's input, and the ReLU's output (once by the ReLU, once by the second layer).
    model = nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 5))
    with Activations() as activations:
        output = model(torch.ones(4, 10))
    assert activations.peak_bytes == 4 * (4 * 10 + 4 * 20)
    output.sum().backward()
    assert activations.peak_bytes == 4 * (4 * 10 + 4 * 20)


def test_peak_excludes_released_activations() -> None:
    model = nn.Linear(10, 10)
    inputs = [torch.ones(n, 10) for n in (1, 2, 3)]
    with Activations() as one_by_one:
        for x in inputs:
            model(x).sum().backward()
    assert one_by_one.peak_bytes == 4 * 30
    with Activations() as at_once:
        for output in [model(x) for x in inputs]:
            output.sum().backward()
    assert at_once.peak_bytes == 4 * 60


def test_counting_does_not_change_gradients() -> None:
    gradients = []
    for count in (False, True):
        weight = torch.full((3, 3), 0.5, requires_grad=True)
        if count:
            with Activations():
                (torch.ones(2, 3) @ weight).exp().sum().backward()
        else:
            (torch.ones(2, 3) @ weight).exp().sum().backward()
        gradients.append(weight.grad)
    assert gradients[0] is not None
    assert gradients[1] is not None
    assert torch.equal(gradients[0], gradients[1])
