"""Agents and world models in the shapes of torchrl, and numbers that come from elsewhere."""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Independent, Normal, OneHotCategorical

from .entry import Family
from .written import Written, mlp

FAMILY = Family("agents")
OBS = torch.randn(3, 6, generator=torch.Generator().manual_seed(4))
ACTION = torch.randn(3, 2, generator=torch.Generator().manual_seed(5))


@FAMILY.entry("implicit quantiles, cosines of noise")
def iqn():
    def forward(net, x):
        tau = torch.rand(3, 4, 1)
        cos = torch.cos(torch.arange(1, 9) * math.pi * tau)
        return net.head(net.body(x)[:, None] * F.relu(net.cos(cos))).mean(1)

    return Written(
        forward, body=nn.Sequential(nn.Linear(6, 8), nn.ReLU()), cos=nn.Linear(8, 8), head=mlp(8, 8, 2)
    ), OBS


@FAMILY.entry("critic of concatenated observation and action")
def critic():
    net = Written(lambda net, o, a: net.q(torch.cat([o, a.tanh()], -1)).squeeze(-1), q=mlp(8, 8, 1))
    return net, (OBS, ACTION)


@FAMILY.entry("actor with a state-independent deviation")
def actor():
    def forward(net, x):
        policy = Independent(Normal(net.mean(x), net.log_std.exp().expand(3, 2)), 1)
        return policy.log_prob(torch.zeros(3, 2)), policy.mean

    return Written(forward, mean=mlp(6, 8, 2, nn.Tanh), log_std=nn.Parameter(torch.zeros(2))), OBS


@FAMILY.entry("world model with discrete latents")
def world_model():
    def forward(net, x):
        logits = net.encoder(x).view(3, 4, 5)
        probs = 0.99 * logits.softmax(-1) + 0.01 / 5
        sample = OneHotCategorical(probs=probs).sample()
        z = (sample + probs - probs.detach()).flatten(1)
        return net.decoder(z), net.reward(z)

    return Written(forward, encoder=mlp(6, 8, 20, nn.SiLU), decoder=mlp(20, 8, 6), reward=mlp(20, 8, 1)), OBS


@FAMILY.entry("simplicial embeddings")
def simnorm():
    def forward(net, x, a):
        z = net.encoder(x).view(3, 2, 4).softmax(-1).flatten(1)
        return net.dynamics(torch.cat([z, a], -1)).view(3, 2, 4).softmax(-1).flatten(1)

    return Written(forward, encoder=mlp(6, 8, 8), dynamics=mlp(10, 8, 8)), (OBS, ACTION)


@FAMILY.entry("successor features")
def successor():
    def forward(net, x):
        psi = net.psi(x).view(3, 2, 4)
        return torch.einsum("bad,d->ba", psi, net.w)

    return Written(forward, psi=mlp(6, 8, 8), w=nn.Parameter(torch.randn(4))), OBS


@FAMILY.entry("contrastive critic")
def contrastive():
    net = Written(lambda net, s, g: -torch.cdist(net.phi(s), net.psi(g)), phi=mlp(6, 8, 4), psi=mlp(2, 8, 4))
    return net, (OBS, ACTION)


@FAMILY.entry("metric of one encoder, then an MLP")
def quasimetric():
    def forward(net, s):
        z = net.phi(s)
        gap = F.relu(z[:, None] - z[None]).amax(-1)
        return net.head(gap)

    return Written(forward, phi=mlp(6, 8, 4), head=mlp(3, 8, 2)), OBS


@FAMILY.entry("ensemble of bmm layers")
def bmm_ensemble():
    def forward(net, x):
        h = F.silu(torch.baddbmm(net.b1, x.expand(4, -1, -1), net.w1))
        return torch.baddbmm(net.b2, h, net.w2).chunk(2, -1)

    return Written(
        forward,
        w1=nn.Parameter(torch.randn(4, 6, 8)),
        b1=nn.Parameter(torch.zeros(4, 1, 8)),
        w2=nn.Parameter(torch.randn(4, 8, 4)),
        b2=nn.Parameter(torch.zeros(4, 1, 4)),
    ), OBS


@FAMILY.entry("prior that is not learnt")
def randomised_prior():
    prior = mlp(6, 8, 2)
    prior.requires_grad_(False)
    return Written(lambda net, x: net.q(x) + 3 * net.prior(x).detach(), q=mlp(6, 8, 2), prior=prior), OBS


@FAMILY.entry("recurrent state of attention over time")
def temporal():
    def forward(net, x):
        x = x.view(3, 2, 3)
        h = net.inp(x) + net.pos[:2]
        scores = net.score(h.tanh()).squeeze(-1).softmax(-1)
        return net.head(F.relu((scores[..., None] * h).sum(1)))

    return Written(
        forward,
        inp=nn.Linear(3, 8),
        pos=nn.Parameter(torch.randn(4, 8)),
        score=nn.Linear(8, 1),
        head=nn.Linear(8, 2),
    ), OBS


@FAMILY.entry("rewards in two-hot bins")
def two_hot():
    def forward(net, x):
        bins = torch.linspace(-2, 2, 5)
        return (net.logits(x).softmax(-1) * (bins.sign() * (bins.abs().exp() - 1))).sum(-1)

    return Written(forward, logits=mlp(6, 8, 5)), OBS


@FAMILY.entry("normalised by hand in float32")
def hand_norm():
    def forward(net, x):
        h = net.up(x)
        f = h.float()
        h = (f * torch.rsqrt(f.pow(2).mean(-1, keepdim=True) + 1e-6)).type_as(h) * net.scale
        return net.down(F.silu(h))

    return Written(
        forward, up=nn.Linear(6, 8, bias=False), scale=nn.Parameter(torch.ones(8)), down=nn.Linear(8, 2)
    ), OBS


@FAMILY.entry("numbers through numpy")
def through_numpy():
    def forward(net, x):
        scaled = torch.from_numpy(np.tanh(x.detach().numpy())).float()
        return net.inner(scaled)

    return Written(forward, inner=mlp(6, 8, 2)), OBS


@FAMILY.entry("numbers through a list")
def through_list():
    return Written(
        lambda net, x: net.inner(torch.tensor([[v / 2 for v in row] for row in x.tolist()])),
        inner=mlp(6, 8, 2),
    ), OBS


@FAMILY.entry("hidden numbers through numpy", refusal="numpy")
def hidden_through_numpy():
    def forward(net, x):
        h = net.up(x)
        return net.down(torch.from_numpy(np.maximum(h.detach().numpy(), 0)).to(h.dtype))

    return Written(forward, up=nn.Linear(6, 8), down=nn.Linear(8, 2)), OBS


@torch.jit.script
def _preprocess(x: torch.Tensor):
    return (x - x.mean()) / (x.std() + 1.0)


@FAMILY.entry("scripted preprocessing")
def scripted_preprocessing():
    return Written(lambda net, x: net.inner(_preprocess(x)), inner=mlp(6, 8, 2)), OBS


@FAMILY.entry("scripted module on the input", options={"linear": ("scale",)})
def scripted_module():
    class Scale(nn.Module):
        def forward(self, x):
            return x / 2 + 1

    return Written(
        lambda net, x: net.inner(net.scale(x)), scale=torch.jit.script(Scale()), inner=mlp(6, 8, 2)
    ), OBS


@FAMILY.entry("half of the inputs are one-hot")
def one_hot_inputs():
    def forward(net, x, k):
        return net.inner(torch.cat([x, F.one_hot(k, 4).float()], -1))

    return Written(forward, inner=mlp(10, 8, 2)), (OBS, torch.tensor([0, 3, 1]))


@FAMILY.entry("skill vector from a buffer")
def skill_buffer():
    def forward(net, x):
        return net.head(F.relu(net.obs(x) * net.skill(net.skills[:3])))

    return Written(
        forward, obs=nn.Linear(6, 8), skill=nn.Linear(4, 8), skills=torch.randn(5, 4), head=nn.Linear(8, 2)
    ), OBS


@FAMILY.entry("hypernetwork of a table")
def hyper_table():
    def forward(net, x, task):
        code = net.table(task)
        w = net.weights(code).view(-1, 8, 6)
        return net.head(F.relu(torch.einsum("boi,bi->bo", w, x) + net.biases(code)))

    return Written(
        forward,
        table=nn.Embedding(4, 5),
        weights=nn.Linear(5, 48),
        biases=nn.Linear(5, 8),
        head=nn.Linear(8, 2),
    ), (OBS, torch.tensor([0, 3, 1]))


@FAMILY.entry("squares of a prediction error as input")
def curiosity():
    def forward(net, x):
        error = (net.predictor(x) - net.target(x).detach()) ** 2
        return net.value(torch.cat([x, error.mean(-1, keepdim=True)], -1))

    return Written(forward, predictor=mlp(6, 8, 4), target=mlp(6, 8, 4), value=mlp(7, 8, 1)), OBS


@FAMILY.entry("particles resampled by weight")
def particles():
    def forward(net, x):
        weights = net.score(x).squeeze(-1).softmax(0)
        chosen = torch.multinomial(weights, 3, replacement=True)
        return net.head(F.relu(net.move(x[chosen])))

    return Written(forward, score=nn.Linear(6, 1), move=nn.Linear(6, 8), head=nn.Linear(8, 2)), OBS
