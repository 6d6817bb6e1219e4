"""Small nets, a batch and a short training run that the tests of the methods share."""

import torch
import torch.nn.functional as F
from torch import nn

from nap.conversion.normalize import normalize_
from nap.methods import Training


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def mlp():
    return nn.Sequential(nn.Linear(12, 10), nn.ReLU(), nn.Linear(10, 8), nn.ReLU(), nn.Linear(8, 3))


def conv():
    return nn.Sequential(
        nn.Unflatten(1, (3, 2, 2)),
        nn.Upsample(scale_factor=4),
        nn.Conv2d(3, 6, 3),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(6 * 3 * 3, 8),
        nn.ReLU(),
        nn.Linear(8, 3),
    )


def two_convs():
    return nn.Sequential(
        nn.Unflatten(1, (3, 2, 2)),
        nn.Conv2d(3, 6, 1),
        nn.ReLU(),
        nn.Conv2d(6, 5, 1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(5 * 2 * 2, 3),
    )


def layer_norm():
    return nn.Sequential(nn.Linear(12, 10), nn.LayerNorm(10), nn.ReLU(), nn.Linear(10, 3))


def batch_norm():
    return nn.Sequential(nn.Linear(12, 10), nn.BatchNorm1d(10), nn.ReLU(), nn.Linear(10, 3))


def nap_conv():
    model = conv()
    normalize_(model, torch.randn(4, 12, generator=generator()))
    return model


NETS = [mlp, conv, two_convs, layer_norm, batch_norm, nap_conv]


INPUTS = torch.randn(16, 12, generator=generator(5), dtype=torch.float64)
LABELS = torch.arange(16) % 3


def build(net, seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return net().double()


def train(net, make, *, seed=0, steps=8, optimizer=torch.optim.Adam):
    """A trained model, its method and its run: two tasks, one method, everything in place."""
    model, method, draws = build(net), make(), generator(seed)
    method.prepare_(model, INPUTS, generator=draws)
    opt = optimizer(model.parameters(), lr=1e-2)
    run = Training.of(model, opt, generator=draws)
    for step in range(steps):
        opt.zero_grad()
        loss = F.cross_entropy(model(INPUTS), LABELS) + method.penalty(run.parameters, run.initial)
        loss.backward()
        method.before_step_(run)
        opt.step()
        method.after_step_(run, INPUTS)
        if step == steps // 2:
            method.at_task_change_(run)
    return model, method, run


class Branches(nn.Module):
    """Two layers concatenated with an input, one shared ReLU, and a reader of both."""

    def __init__(self):
        super().__init__()
        self.left, self.right, self.head = nn.Linear(4, 5), nn.Linear(4, 3), nn.Linear(10, 2)
        self.relu = nn.ReLU()

    def forward(self, x, action):
        return self.head(torch.cat([self.relu(self.left(x)), self.relu(self.right(x)), action], -1))
