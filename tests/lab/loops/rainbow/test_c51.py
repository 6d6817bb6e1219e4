"""Categorical Q-learning and noisy layers, each against a slow version or its known statistics."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from nap.lab.loops.rainbow import c51
from nap.lab.models.rainbow_net import DQN, NoisyLinear, RainbowNet, noise_of

SMALL = {"shape": (12, 12), "torso": ((4, 3, 2), (6, 3, 1)), "hidden": 16, "atoms": 11}


def slowly_projected(probabilities: Tensor, rewards: Tensor, discounts: Tensor, atoms: Tensor) -> Tensor:
    """Atom by atom, as Bellemare et al. write it: mass shared between floor and ceiling."""
    out = torch.zeros_like(probabilities)
    low, high, gap = atoms[0].item(), atoms[-1].item(), (atoms[1] - atoms[0]).item()
    for row in range(len(probabilities)):
        for j, z in enumerate(atoms.tolist()):
            value = min(max(rewards[row].item() + discounts[row].item() * z, low), high)
            place = (value - low) / gap
            below = min(math.floor(place + 1e-9), len(atoms) - 1)
            share = place - below
            out[row, below] += probabilities[row, j] * (1 - share)
            if below + 1 < len(atoms):
                out[row, below + 1] += probabilities[row, j] * share
    return out


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 10_000), atoms=st.integers(2, 12))
def test_projection_shares_mass_between_neighbours(seed: int, atoms: int) -> None:
    draws = torch.Generator().manual_seed(seed)
    z = c51.support(atoms, 10.0, torch.zeros(1, dtype=torch.float64))
    p = torch.rand(5, atoms, generator=draws, dtype=torch.float64).softmax(1)
    rewards = 8 * torch.randn(5, generator=draws, dtype=torch.float64)
    discounts = torch.rand(5, generator=draws, dtype=torch.float64) * (torch.arange(5) > 0)
    found = c51.project_distribution(p, rewards, discounts, z)
    torch.testing.assert_close(found, slowly_projected(p, rewards, discounts, z), rtol=0, atol=1e-7)
    torch.testing.assert_close(found.sum(1), torch.ones(5, dtype=torch.float64))
    inside = (rewards.abs() + 10 * discounts) <= 10
    means = rewards + discounts * (p @ z)
    torch.testing.assert_close((found @ z)[inside], means[inside], rtol=0, atol=1e-9)


def test_the_action_comes_from_one_network_and_its_value_from_the_other() -> None:
    atoms = torch.tensor([-1.0, 0.0, 1.0])
    selecting = torch.zeros(1, 2, 3)
    selecting[0, 1] = torch.tensor([0.0, 0.0, 9.0])  # prefers action 1
    evaluating = torch.full((1, 2, 3), -99.0)
    evaluating[0, 0, 2] = 0.0  # thinks action 0 is worth 1
    evaluating[0, 1, 0] = 0.0  # and action 1 is worth −1
    best = c51.mean_return(selecting, atoms).argmax(-1)
    targets = c51.double_q_targets(torch.zeros(1), torch.ones(1), best, evaluating, atoms)
    torch.testing.assert_close(targets, torch.tensor([[1.0, 0.0, 0.0]]))


def test_log_probabilities_are_those_of_the_actions_taken() -> None:
    logits = torch.randn(3, 4, 5, dtype=torch.float64)
    actions = torch.tensor([2, 0, 3])
    expected = [
        [math.log(q) for q in logits[i, a].softmax(0).tolist()] for i, a in enumerate(actions.tolist())
    ]
    torch.testing.assert_close(
        c51.log_probabilities(logits, actions), torch.tensor(expected, dtype=torch.float64)
    )


def test_noise_is_the_signed_root_of_a_normal_cut_off_at_two() -> None:
    u = (torch.arange(100_000, dtype=torch.float64) + 0.5) / 100_000  # every quantile once
    noise = noise_of(u)
    normal = noise.sign() * noise**2
    assert normal.abs().max() < 2
    assert abs(noise.mean().item()) < 1e-9
    variance = 1 - 2 * 2 * math.exp(-2) / math.sqrt(2 * math.pi) / math.erf(math.sqrt(2))
    assert normal.var().item() == pytest.approx(variance, rel=1e-3)  # 0.774, by the textbook


def test_noise_is_factorised_and_zero_mean() -> None:
    torch.manual_seed(0)
    layer = NoisyLinear(6, 4).double()
    x, noise = torch.randn(3, 6, dtype=torch.float64), torch.randn(1, 10, dtype=torch.float64)
    into, out = noise[0, :6], noise[0, 6:]
    weight = layer.mu.weight + layer.sigma.weight * torch.outer(out, into)
    bias = layer.mu.bias + layer.sigma.bias * out
    torch.testing.assert_close(layer(x, noise), x @ weight.T + bias)
    torch.testing.assert_close(layer(x, torch.zeros_like(noise)), layer.mu(x))


def test_each_row_can_have_its_own_noise() -> None:
    torch.manual_seed(0)
    net = RainbowNet(3, **SMALL).double()  # type: ignore[arg-type]
    frames, noise = torch.randint(0, 256, (5, 4, 12, 12)).double(), net.noise(5)
    together = net(frames, noise)
    alone = torch.cat([net(frames[i : i + 1], noise[i : i + 1]) for i in range(5)])
    torch.testing.assert_close(together, alone)
    assert not torch.allclose(together, net(frames, noise[:1]))


def test_it_begins_as_dqn_zoo_s() -> None:
    """Weights and biases uniform within 1/√fan-in, σ constant; advantages have mean zero."""
    torch.manual_seed(0)
    net = RainbowNet(6)
    for name, fan_in in (
        ("torso.0", 4 * 64),
        ("torso.4", 64 * 9),
        ("value.mu", 3136),
        ("value_head.mu", 512),
    ):
        layer = net.get_submodule(name)
        for parameter in layer.parameters():
            assert 0.8 < parameter.abs().max().item() * math.sqrt(fan_in) <= 1
    assert torch.equal(net.value.sigma.weight, torch.full((512, 3136), 0.1 / math.sqrt(3136)))
    logits, noise = net(torch.zeros(2, 4, 84, 84), zero := torch.zeros(1, net.noise_size)), zero
    value = net.value_head(
        net.value(net.features(torch.zeros(2, 4, 84, 84)), noise[:, :3648]).relu(), noise[:, :563]
    )
    torch.testing.assert_close(logits.mean(1), value, rtol=1e-4, atol=1e-5)


def test_the_first_convolution_is_dqn_s_of_8_by_8_with_stride_4() -> None:
    net, frames = RainbowNet(3).double(), torch.randint(0, 256, (2, 4, 84, 84)).double()
    folded = net.torso[0]
    assert isinstance(folded, nn.Conv2d)
    usual = nn.Conv2d(4, 32, 8, 4).double()
    usual.load_state_dict({"weight": F.pixel_shuffle(folded.weight, 4), "bias": folded.bias})
    torch.testing.assert_close(
        net.features(frames), net.torso[1:](usual(frames / 255.0)), rtol=1e-12, atol=1e-12
    )


def test_frames_that_are_too_small_are_refused() -> None:
    with pytest.raises(ValueError, match="12×12 are too small"):
        RainbowNet(3, (12, 12), torso=DQN)
