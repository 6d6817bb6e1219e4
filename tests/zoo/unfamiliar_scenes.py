"""Images and diffusion, in the shapes of timm and diffusers."""

from __future__ import annotations

import math
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn

from .entry import Family
from .written import Written, mlp

FAMILY = Family("scenes")
IMAGE = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))


@FAMILY.entry("squeeze-excite with a shared act")
def squeeze_excite():
    def forward(net, x):
        x = net.act(net.stem(x))
        s = x.mean((2, 3), keepdim=True)
        x = x * net.gate(net.expand(net.act(net.reduce(s))))
        return net.head(net.act(net.project(x)).mean((2, 3)))

    parts = {"stem": nn.Conv2d(3, 8, 3), "reduce": nn.Conv2d(8, 4, 1), "expand": nn.Conv2d(4, 8, 1)}
    return Written(
        forward, **parts, project=nn.Conv2d(8, 8, 1), act=nn.SiLU(), gate=nn.Sigmoid(), head=nn.Linear(8, 2)
    ), IMAGE


@FAMILY.entry("swin v2 position MLP and cosine attention")
def swin_v2():
    def forward(net, x):
        x = net.patch(x).flatten(2).mT
        qkv = F.linear(x, net.qkv.weight, torch.cat([net.q_bias, torch.zeros_like(net.q_bias), net.v_bias]))
        q, k, v = qkv.reshape(2, 16, 3, 2, 4).permute(2, 0, 3, 1, 4).unbind(0)
        logits = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1)
        logits = logits * torch.clamp(net.logit_scale, max=math.log(100.0)).exp()
        bias = 16 * torch.sigmoid(net.cpb(net.table))
        x = (logits + bias.permute(2, 0, 1)[None]).softmax(-1) @ v
        return net.head(net.norm(net.proj(x.transpose(1, 2).flatten(2))).mean(1))

    table = torch.randn(16, 16, 2)
    cpb = nn.Sequential(nn.Linear(2, 12), nn.ReLU(), nn.Linear(12, 2, bias=False))
    return Written(
        forward,
        patch=nn.Conv2d(3, 8, 2, 2),
        qkv=nn.Linear(8, 24, bias=False),
        q_bias=nn.Parameter(torch.zeros(8)),
        v_bias=nn.Parameter(torch.zeros(8)),
        logit_scale=nn.Parameter(torch.full((2, 1, 1), 2.3)),
        table=table,
        cpb=cpb,
        proj=nn.Linear(8, 8),
        norm=nn.LayerNorm(8),
        head=nn.Linear(8, 2),
    ), IMAGE


@FAMILY.entry("beit, layer scale")
def beit():
    def forward(net, x):
        x = net.patch(x).flatten(2).mT
        h = net.norm1(x)
        q, k, v = F.linear(h, net.qkv.weight, net.qkv.bias).reshape(2, 16, 3, 2, 4).permute(2, 0, 3, 1, 4)
        h = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = x + net.gamma1 * net.proj(h)
        x = x + net.gamma2 * net.mlp(net.norm2(x))
        return net.head(x.mean(1))

    return Written(
        forward,
        patch=nn.Conv2d(3, 8, 2, 2),
        qkv=nn.Linear(8, 24),
        proj=nn.Linear(8, 8),
        mlp=mlp(8, 16, 8, nn.GELU),
        gamma1=nn.Parameter(1e-5 * torch.ones(8)),
        gamma2=nn.Parameter(1e-5 * torch.ones(8)),
        norm1=nn.LayerNorm(8),
        norm2=nn.LayerNorm(8),
        head=nn.Linear(8, 2),
    ), IMAGE


def sinusoid(t, width):
    freqs = torch.exp(-math.log(10000) * torch.arange(width // 2) / (width // 2))
    angles = torch.as_tensor(t).reshape(-1, 1).float() * freqs
    return torch.cat([angles.sin(), angles.cos()], -1)


def denoiser(name: str, t, **about):
    """A diffusers-like block: the time embedding scales and shifts what a GroupNorm gives."""

    def build():
        def forward(net, sample, timestep):
            emb = net.time(sinusoid(timestep, 8))
            scale, shift = net.emb(F.silu(emb))[:, :, None, None].chunk(2, 1)
            h = net.conv_in(sample)
            r = net.conv1(F.silu(net.norm1(h)))
            r = net.conv2(F.silu(net.norm2(r) * (1 + scale) + shift))
            return net.out(F.silu(net.norm_out(h + r)))

        return Written(
            forward,
            time=mlp(8, 16, 16, nn.SiLU),
            emb=nn.Linear(16, 16),
            conv_in=nn.Conv2d(3, 8, 3, padding=1),
            conv1=nn.Conv2d(8, 8, 3, padding=1),
            conv2=nn.Conv2d(8, 8, 3, padding=1),
            norm1=nn.GroupNorm(2, 8),
            norm2=nn.GroupNorm(2, 8),
            norm_out=nn.GroupNorm(2, 8),
            out=nn.Conv2d(8, 3, 3, padding=1),
        ), (IMAGE, t)

    FAMILY.add(name, build, **about)


denoiser("denoiser, time as an int", 7)
denoiser("denoiser, time as a float", 0.3)
denoiser("denoiser, time as a list", [1, 5])
denoiser("denoiser, time as a long tensor", torch.tensor([3, 9]))


@FAMILY.entry("dit block, adaLN zero")
def dit():
    def forward(net, x, t, y):
        c = net.time(sinusoid(t, 8)) + net.label(y)
        shift, scale, gate, shift2, scale2, gate2 = net.ada(c)[:, None].chunk(6, -1)
        x = net.embed(x) + net.pos
        h = F.layer_norm(x, (8,)) * (1 + scale) + shift
        x = x + gate * net.attn(h, h, h, need_weights=False)[0]
        x = x + gate2 * net.mlp(F.layer_norm(x, (8,)) * (1 + scale2) + shift2)
        return net.final(F.layer_norm(x, (8,)))

    return Written(
        forward,
        time=mlp(8, 16, 8, nn.SiLU),
        label=nn.Embedding(4, 8),
        ada=nn.Sequential(nn.SiLU(), nn.Linear(8, 48)),
        embed=nn.Linear(6, 8),
        pos=nn.Parameter(torch.randn(1, 5, 8)),
        attn=nn.MultiheadAttention(8, 2, batch_first=True),
        mlp=mlp(8, 16, 8, nn.GELU),
        final=nn.Linear(8, 6),
    ), (torch.randn(2, 5, 6), torch.tensor([3, 9]), torch.tensor([0, 2]))


@FAMILY.entry("style generator of noise")
def style():
    def forward(net, z):
        w = net.mapping(F.normalize(z, dim=1))
        x = net.const.expand(2, -1, -1, -1)
        for conv, affine in zip(net.convs, net.affines, strict=True):
            x = conv(x * affine(w)[:, :, None, None]) + 0.1 * torch.randn(2, 1, 4, 4)
            x = F.leaky_relu(F.instance_norm(x), 0.2)
        return net.rgb(x)

    return Written(
        forward,
        mapping=mlp(6, 8, 8),
        const=nn.Parameter(torch.randn(1, 8, 4, 4)),
        rgb=nn.Conv2d(8, 3, 1),
        convs=nn.ModuleList([nn.Conv2d(8, 8, 3, padding=1) for _ in range(2)]),
        affines=nn.ModuleList([nn.Linear(8, 8) for _ in range(2)]),
    ), torch.randn(2, 6)


@FAMILY.entry("style generator, weights demodulated")
def demodulated():
    def forward(net, x, w):
        s = net.affine(w)
        weight = net.weight[None] * s[:, None, :, None, None]
        weight = weight * (weight.square().sum((2, 3, 4), keepdim=True) + 1e-8).rsqrt()
        y = F.conv2d(x.reshape(1, -1, 8, 8), weight.flatten(0, 1), padding=1, groups=2).reshape(2, 8, 8, 8)
        return net.rgb(F.leaky_relu(y + net.bias[:, None, None], 0.2))

    return Written(
        forward,
        affine=nn.Linear(6, 3),
        weight=nn.Parameter(torch.randn(8, 3, 3, 3)),
        bias=nn.Parameter(torch.zeros(8)),
        rgb=nn.Conv2d(8, 3, 1),
    ), (IMAGE, torch.randn(2, 6))


@FAMILY.entry("coordinates of a grid")
def grid_network():
    def forward(net, z):
        axis = torch.linspace(-1, 1, 4)
        grid = torch.stack(torch.meshgrid(axis, axis, indexing="ij"), -1).reshape(-1, 2)
        h = net.pixel(grid)[None] + net.latent(z)[:, None]
        return net.out(torch.sin(h))

    return Written(forward, pixel=nn.Linear(2, 8), latent=nn.Linear(6, 8), out=nn.Linear(8, 3)), torch.randn(
        2, 6
    )


@FAMILY.entry("learned queries of a detector")
def queries():
    def forward(net, x):
        memory = net.backbone(x).flatten(2).mT
        q = net.ref(net.query.weight)[None].expand(2, -1, -1)
        h = net.attn(q, memory, memory)[0]
        return net.cls(F.relu(net.hidden(h))), net.box(h).sigmoid()

    return Written(
        forward,
        backbone=nn.Conv2d(3, 8, 2, 2),
        query=nn.Embedding(5, 8),
        ref=mlp(8, 8, 8),
        hidden=nn.Linear(8, 8),
        attn=nn.MultiheadAttention(8, 2, batch_first=True),
        cls=nn.Linear(8, 4),
        box=nn.Linear(8, 4),
    ), IMAGE


@FAMILY.entry("max feature maps")
def max_feature_maps():
    def forward(net, x):
        for conv in net.convs:
            x = torch.max(*conv(x).chunk(2, 1))
        return net.head(x.mean((2, 3)))

    return Written(
        forward, convs=nn.ModuleList([nn.Conv2d(3, 8, 3), nn.Conv2d(4, 8, 3)]), head=nn.Linear(4, 2)
    ), IMAGE


@FAMILY.entry("spectrum of a result")
def spectrum():
    def forward(net, x):
        return net.head(torch.fft.rfft2(net.conv(x)).abs().mean((2, 3)))

    return Written(forward, conv=nn.Conv2d(3, 8, 3), head=nn.Linear(8, 2)), IMAGE


@FAMILY.entry("simple gate")
def simple_gate():
    def forward(net, x):
        h = net.conv1(F.group_norm(x, 1))
        a, b = net.conv2(h).chunk(2, 1)
        h = a * b
        h = h * net.sca(h.mean((2, 3), keepdim=True))
        return x + net.conv3(h)

    return Written(
        forward,
        conv1=nn.Conv2d(3, 8, 1),
        conv2=nn.Conv2d(8, 8, 3, padding=1, groups=8),
        sca=nn.Conv2d(4, 4, 1),
        conv3=nn.Conv2d(4, 3, 1),
    ), IMAGE


@FAMILY.entry("covariance pooling")
def covariance():
    def forward(net, x):
        h = net.conv(x).flatten(2)
        h = h - h.mean(2, keepdim=True)
        return net.head((h @ h.mT / 36).flatten(1))

    return Written(forward, conv=nn.Conv2d(3, 4, 3), head=nn.Linear(16, 2)), IMAGE


@FAMILY.entry("fine-grained bilinear of two streams")
def two_stream_bilinear():
    def forward(net, x):
        a, b = net.a(x).flatten(2), net.b(x).flatten(2)
        z = torch.bmm(a, b.mT).flatten(1)
        z = F.normalize(z.sign() * z.abs().sqrt(), dim=1)
        return net.head(z)

    return Written(forward, a=nn.Conv2d(3, 4, 3), b=nn.Conv2d(3, 4, 3), head=nn.Linear(16, 2)), IMAGE


@FAMILY.entry("zero-initialised control branch")
def control():
    def forward(net, x, hint):
        h = net.conv_in(x)
        c = net.zero_out(F.silu(net.copy(h + net.zero_in(hint))))
        return net.out(F.silu(net.norm(h + c)))

    def zero(conv):
        nn.init.zeros_(conv.weight), nn.init.zeros_(conv.bias)
        return conv

    return Written(
        forward,
        conv_in=nn.Conv2d(3, 8, 3, padding=1),
        zero_in=zero(nn.Conv2d(3, 8, 1)),
        norm=nn.GroupNorm(2, 8),
        copy=nn.Conv2d(8, 8, 3, padding=1),
        zero_out=zero(nn.Conv2d(8, 8, 1)),
        out=nn.Conv2d(8, 3, 3, padding=1),
    ), (IMAGE, IMAGE.flip(0))


@FAMILY.entry("batch in an object, one field unset")
def object_input():
    def forward(net, batch):
        h = net.conv(batch.pixels).mean((2, 3))
        if batch.extra is not None:
            h = h + net.extra(batch.extra)
        return net.head(F.relu(h))

    batch = SimpleNamespace(pixels=IMAGE, extra=None)
    return Written(forward, conv=nn.Conv2d(3, 8, 3), extra=nn.Linear(4, 8), head=nn.Linear(8, 2)), (batch,)


@FAMILY.entry("deformed sampling")
def deformed():
    def forward(net, x):
        h = net.conv(x)
        theta = net.loc(x.mean((2, 3))).view(2, 2, 3)
        h = F.grid_sample(h, F.affine_grid(theta, h.shape, align_corners=False), align_corners=False)
        return net.head(F.relu(h).mean((2, 3)))

    return Written(forward, conv=nn.Conv2d(3, 8, 3), loc=mlp(3, 8, 6), head=nn.Linear(8, 2)), IMAGE
