"""A small net, its inputs and a seeded generator that the tests of diagnostics share."""

import torch
from torch import nn


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def small_net(kind="plain"):
    torch.manual_seed(0)
    norm = {"plain": nn.Identity(), "layer": nn.LayerNorm(6), "batch": nn.BatchNorm1d(6)}[kind]
    return nn.Sequential(nn.Linear(4, 6), norm, nn.Tanh(), nn.Linear(6, 3)).double()


INPUTS = torch.randn(5, 4, generator=generator(3), dtype=torch.float64)
