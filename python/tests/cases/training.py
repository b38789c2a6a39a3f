"""A small model, its data, and how one process trains it: what everything parallel must equal."""

import copy

import torch
from torch import nn

STEPS = 4
ROWS = 16


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.down(torch.tanh(self.up(x)))


def model(blocks=4, width=16):
    """The same on every rank."""
    torch.manual_seed(7)
    return nn.Sequential(*[Block(width) for _ in range(blocks)])


def batch(step, width=16):
    generator = torch.Generator().manual_seed(100 + step)
    x = torch.randn(ROWS, width, generator=generator)
    return x, torch.roll(x, 1, 1).square()


def share(tensor, rank, world):
    return tensor.chunk(world)[rank]


def loss(out, target):
    return nn.functional.mse_loss(out, target)


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def reference(steps=STEPS, make_optimizer=optimizer, **sizes):
    """Losses and parameters of one process."""
    single = model(**sizes)
    update = make_optimizer(single.parameters())
    losses = []
    for step in range(steps):
        x, target = batch(step)
        value = loss(single(x), target)
        value.backward()
        update.step()
        update.zero_grad()
        losses.append(value.item())
    assert losses[-1] < losses[0]
    return losses, copy.deepcopy(single)


def train(parallel, update, rank, world, steps=STEPS):
    """Losses of this rank's shares of the batches."""
    losses = []
    for step in range(steps):
        x, target = batch(step)
        value = loss(parallel(share(x, rank, world)), share(target, rank, world))
        value.backward()
        update.step()
        update.zero_grad()
        losses.append(value.item())
    return losses


def same(found, wanted, **tolerance):
    """Parameters, by name, are those of the reference."""
    wanted = dict(wanted.named_parameters())
    found = {name.removeprefix("module."): value for name, value in found.items()}
    assert found.keys() == wanted.keys(), found.keys()
    for name, value in found.items():
        torch.testing.assert_close(value.detach(), wanted[name].detach(), **tolerance)
