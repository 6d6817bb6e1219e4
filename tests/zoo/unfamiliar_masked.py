"""Weights that masks keep zeros in, and others whose use only the whole network shows."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .entry import Family
from .written import Written, mlp

FAMILY = Family("masked")
X = torch.randn(3, 4, generator=torch.Generator().manual_seed(7))
TOKENS = torch.randn(2, 5, 4, generator=torch.Generator().manual_seed(8))
NESTED = "more and more inputs, as in MADE"
DEGREES = torch.arange(8) % 3
INTO = (DEGREES[:, None] >= torch.arange(4)).float()
ACROSS = (DEGREES[:, None] >= DEGREES).float()
OUT = (torch.arange(4)[:, None] > DEGREES).float()


class Masked(nn.Linear):
    mask: Tensor

    def __init__(self, mask: Tensor):
        super().__init__(mask.shape[1], mask.shape[0])
        self.register_buffer("mask", mask)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.mask * self.weight, self.bias)


class MaskedInPlace(Masked):
    def forward(self, x: Tensor) -> Tensor:
        self.weight.data *= self.mask.to(self.weight)
        return F.linear(x, self.weight, self.bias)


def made(layer: type[Masked]) -> nn.Sequential:
    return nn.Sequential(layer(INTO), nn.ReLU(), layer(ACROSS), nn.ReLU(), layer(OUT))


FAMILY.add("autoregressive", lambda: (made(Masked), X), refusal=NESTED)
FAMILY.add("autoregressive, left as it is", lambda: (made(Masked), X), options={"allow": ("0", "2")})
FAMILY.add("autoregressive, excluded", lambda: (made(Masked), X), options={"exclude": ("0", "2")})
FAMILY.add("autoregressive, masked in place", lambda: (made(MaskedInPlace), X), refusal=NESTED)


@FAMILY.entry("autoregressive with a condition", refusal=NESTED)
def conditional():
    joined = Written(
        lambda net, x, y: net.masked(x) + net.other(y), masked=Masked(INTO), other=nn.Linear(3, 8)
    )
    net = Written(lambda net, x, y: net.out(net.inner(x, y).relu()), inner=joined, out=Masked(OUT))
    return net, (X, torch.randn(3, 3))


def _causal(net: Written, x: Tensor) -> Tensor:
    return net.out((net.mix.tril() @ net.into(x)).relu())


def _mixing() -> Written:
    parts = {"mix": nn.Parameter(torch.randn(5, 5)), "into": nn.Linear(4, 6), "out": nn.Linear(6, 2)}
    return Written(_causal, **parts)


FAMILY.add("mixing of the past by a triangle", lambda: (_mixing(), TOKENS), refusal=NESTED)
FAMILY.add("mixing of the past, accepted", lambda: (_mixing(), TOKENS), options={"allow": ("mix",)}, causal=1)


@FAMILY.entry("mixing of neighbours by a band", refusal="keep positions that it mixes apart")
def band():
    near = (torch.arange(5)[:, None] - torch.arange(5)).abs() <= 1
    parts = {"mix": nn.Parameter(torch.randn(5, 5)), "out": nn.Linear(4, 2)}
    return Written(lambda net, x: net.out(((net.mix * near) @ x).relu()), **parts), TOKENS


@FAMILY.entry("factorization machine with a module for its factors")
def machine():
    def forward(net, x):
        pairs = net.embed(x) ** 2 - (x**2) @ net.embed.factors**2
        return net.out(net.hidden(pairs).relu())

    embed = Written(lambda net, x: x @ net.factors, factors=nn.Parameter(torch.randn(4, 3)))
    return Written(forward, embed=embed, hidden=nn.Linear(3, 5), out=nn.Linear(5, 1)), X


@FAMILY.entry("separate parts by a mask", refusal="keep groups of features apart")
def separate():
    mask = torch.block_diag(torch.ones(4, 2), torch.ones(4, 2))
    return nn.Sequential(Masked(mask), nn.Tanh(), nn.Linear(8, 2)), X


@FAMILY.entry("pruned at random")
def pruned():
    return nn.Sequential(Masked((torch.rand(8, 4) > 0.5).float()), nn.ReLU(), nn.Linear(8, 2)), X


@FAMILY.entry("identity as a start")
def identity():
    net = mlp(4, 4, 2)
    nn.init.eye_(net.get_parameter("0.weight"))
    return net, X


class PixelConvolution(nn.Conv2d):
    mask: Tensor

    def __init__(self, inputs: int, outputs: int, first: bool):
        super().__init__(inputs, outputs, 3, padding=1)
        mask = torch.ones(3, 3)
        mask[1, 2 - first :] = 0
        mask[2] = 0
        self.register_buffer("mask", mask)

    def forward(self, x: Tensor) -> Tensor:
        return self._conv_forward(x, self.weight * self.mask, self.bias)


@FAMILY.entry("one pixel after another")
def pixel_cnn():
    first, second = PixelConvolution(1, 4, True), PixelConvolution(4, 4, False)
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), nn.Conv2d(4, 3, 1)), torch.randn(2, 1, 4, 4)


@FAMILY.entry("distances to centres, written out, in a Gaussian")
def gabor():
    def forward(net, x):
        squares = (x**2).sum(-1, keepdim=True) + (net.centres**2).sum(-1) - 2 * x @ net.centres.T
        return net.out(net.waves(x).sin() * torch.exp(-squares * net.widths))

    parts = {"centres": nn.Parameter(torch.randn(8, 4)), "widths": nn.Parameter(torch.rand(8))}
    return Written(forward, waves=nn.Linear(4, 8), out=nn.Linear(8, 1), **parts), X


@FAMILY.entry("distances to centres in one call")
def fused_distances():
    def forward(net, x):
        squares = x.square().sum(-1, keepdim=True) + net.centres.square().sum(-1)
        return net.out(torch.addmm(squares, x, net.centres.T, alpha=-2).neg().softmax(-1))

    return Written(forward, centres=nn.Parameter(torch.randn(8, 4)), out=nn.Linear(8, 1)), X


@FAMILY.entry("nearest code, distances written out")
def codes():
    def forward(net, x):
        z, code = net.encode(x), net.codes.weight
        distance = (z**2).sum(1, keepdim=True) + (code**2).sum(1) - 2 * z @ code.t()
        q = net.codes(distance.argmin(1))
        return net.decode(z + (q - z).detach())

    return Written(forward, encode=mlp(4, 8, 3), codes=nn.Embedding(5, 3), decode=mlp(3, 8, 4)), X


@FAMILY.entry("two weights in one einsum, nodes first")
def nodes():
    def forward(net, x):
        return net.out(torch.einsum("nm,bmf,fg->bng", net.mix, x, net.map).relu())

    parts = {"mix": nn.Parameter(torch.randn(5, 5)), "map": nn.Parameter(torch.randn(4, 5))}
    return Written(forward, out=nn.Linear(5, 2), **parts), TOKENS


@FAMILY.entry("attention along rows, then along columns")
def axial():
    def attend(net, x):
        q, k, v = net.qkv(x).chunk(3, -1)
        return net.out((q @ k.mT / 8**0.5).softmax(-1) @ v)

    def forward(net, x):
        x = net.into(x)
        x = x + net.attend(x)
        return net.out(x + net.attend(x.transpose(1, 2)).transpose(1, 2))

    attention = Written(attend, qkv=nn.Linear(8, 24), out=nn.Linear(8, 8))
    net = Written(forward, into=nn.Linear(3, 8), attend=attention, out=nn.Linear(8, 2))
    return net, torch.randn(2, 4, 5, 3)


class Standardised(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        mean, std = self.weight.mean((1, 2, 3), keepdim=True), self.weight.std((1, 2, 3), keepdim=True)
        return F.conv2d(x, (self.weight - mean) / (std + 1e-5), self.bias, self.stride, self.padding)


@FAMILY.entry("weights standardised by hand")
def standardised():
    net = nn.Sequential(Standardised(3, 8, 3), nn.ReLU(), Standardised(8, 8, 3), nn.ReLU())
    return nn.Sequential(net, nn.Flatten(), nn.Linear(8, 2)), torch.randn(2, 3, 5, 5)


@FAMILY.entry("learned keys and values before those of the input")
def prefix():
    def forward(net, x):
        q, k, v = net.qkv(x).chunk(3, -1)
        k, v = (torch.cat([p.expand(len(x), -1, -1), t], 1) for p, t in ((net.keys, k), (net.values, v)))
        return net.out((q @ k.mT / 8**0.5).softmax(-1) @ v)

    parts = {"keys": nn.Parameter(torch.randn(3, 8)), "values": nn.Parameter(torch.randn(3, 8))}
    return Written(forward, qkv=nn.Linear(4, 24), out=nn.Linear(8, 2), **parts), TOKENS


@FAMILY.entry("a matrix of ones that multiplies features")
def ones():
    net = Written(
        lambda net, x: net.out((net.into(x) * net.scale).tanh().mean(1)),
        into=nn.Linear(4, 6), out=nn.Linear(6, 2), scale=nn.Parameter(torch.ones(5, 6)),
    )  # fmt: skip
    return net, TOKENS


class StateSpace(nn.Module):
    """Its kernel is made of weights alone; in a module of its own, as the refusal says, it converts."""

    def __init__(self) -> None:
        super().__init__()
        self.c = nn.Parameter(torch.randn(6, 4, 2))
        self.real = nn.Parameter(torch.rand(6, 4).log())
        self.imag = nn.Parameter(math.pi * torch.arange(4.0).repeat(6, 1))
        self.skip = nn.Parameter(torch.randn(6))

    def forward(self, u: Tensor) -> Tensor:
        length, rate = u.shape[-1], torch.complex(-self.real.exp(), self.imag) / 8
        powers = torch.exp(rate[..., None] * torch.arange(length))
        kernel = torch.einsum("hn,hnl->hl", torch.view_as_complex(self.c) / rate, powers).real
        product = torch.fft.rfft(u, n=2 * length) * torch.fft.rfft(kernel, n=2 * length)
        return torch.fft.irfft(product, n=2 * length)[..., :length] + u * self.skip[:, None]


@FAMILY.entry("state space in a module of its own")
def state_space():
    def forward(net, x):
        return net.out(F.gelu(net.mix(net.into(x).mT)).mT)

    return Written(forward, into=nn.Linear(4, 6), mix=StateSpace(), out=nn.Linear(6, 2)), TOKENS


class SideBySide(nn.Module):
    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs, dtype=torch.cfloat))

    def forward(self, z: Tensor) -> Tensor:
        return torch.view_as_real(z @ self.weight.T).flatten(-2)


@FAMILY.entry("complex numbers side by side")
def complex_parts():
    def forward(net, x):
        z = torch.view_as_complex(net.a(x.to(net.a.weight.dtype)).unflatten(-1, (-1, 2)).contiguous())
        return net.out(net.b(F.relu(z.abs() - 0.1) * z / (z.abs() + 1e-6)).square())

    return Written(forward, a=SideBySide(4, 6), b=SideBySide(6, 5), out=nn.Linear(10, 2)), X


def fourier(spectral: bool) -> Written:
    def mix(net, x):
        x = x.mT
        return (net.spectral(x) + net.point(x)).mT

    def forward(net, x):
        x = net.into(x)
        for block in net.blocks:
            x = F.gelu(block(x))
        return net.out(x)

    def multiply(net, x):
        return torch.fft.irfft(torch.einsum("bim,iom->bom", torch.fft.rfft(x), net.weight), n=x.shape[-1])

    def block() -> Written:
        weight = {"weight": nn.Parameter(torch.rand(6, 6, 5, dtype=torch.cfloat))}
        if spectral:
            return Written(mix, spectral=Written(multiply, **weight), point=nn.Conv1d(6, 6, 1))
        joined = Written(lambda net, x: (multiply(net, x.mT) + net.point(x.mT)).mT, **weight)
        joined.point = nn.Conv1d(6, 6, 1)
        return joined

    return Written(
        forward, into=nn.Linear(2, 6), blocks=nn.ModuleList([block(), block()]), out=nn.Linear(6, 1)
    )


WAVES = torch.randn(2, 8, 2, generator=torch.Generator().manual_seed(9))
FAMILY.add("Fourier operators that transpose", lambda: (fourier(False), WAVES), refusal="a module of its own")
FAMILY.add("Fourier operators in modules of their own", lambda: (fourier(True), WAVES))


class Transposed(nn.Module):
    def __init__(self, of: nn.Linear):
        super().__init__()
        self.weight, self.bias = of.weight, nn.Parameter(torch.zeros(of.in_features))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.t(), self.bias)


@FAMILY.entry("decoder of transposed weights, in modules")
def transposed():
    first, second = nn.Linear(4, 6), nn.Linear(6, 3)
    hidden = nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), Transposed(second), nn.ReLU())
    return nn.Sequential(hidden, nn.Linear(6, 4)), X


@FAMILY.entry("raw LoRA with an activation of its own each")
def lora():
    def layer(x, w, a, b):
        return F.linear(x, w) + F.linear(F.linear(x, a), b)

    def forward(net, x):
        return net.out(net.act2(layer(net.act1(layer(x, *net.one)), *net.two)))

    def parts(inputs: int) -> nn.ParameterList:
        return nn.ParameterList([torch.randn(8, inputs), torch.randn(2, inputs), torch.zeros(8, 2)])

    return Written(
        forward, one=parts(4), two=parts(8), act1=nn.GELU(), act2=nn.GELU(), out=nn.Linear(8, 2)
    ), X


@FAMILY.entry("value iteration with a module for its transitions")
def value_iteration():
    def look(net, r, v):
        return F.conv2d(torch.cat([r, v], 1), torch.cat([net.of_reward, net.of_value], 1), padding=1)

    def forward(net, x):
        r = net.reward(x)
        q = net.look(r, torch.zeros_like(r))
        for _ in range(2):
            q = net.look(r, q.amax(1, keepdim=True))
        return net.out(q[:, :, 2, 2])

    kernels = [nn.Parameter(torch.randn(4, 1, 3, 3)) for _ in range(2)]
    moves = Written(look, of_reward=kernels[0], of_value=kernels[1])
    net = Written(forward, reward=nn.Conv2d(2, 1, 1), look=moves, out=nn.Linear(4, 3))
    return net, torch.randn(2, 2, 5, 5)


@FAMILY.entry("long convolution by a triangle made of a vector", refusal=NESTED)
def toeplitz():
    distance = torch.arange(5)[:, None] - torch.arange(5)

    def forward(net, x):
        kernel = net.taps[distance.clamp(min=0)] * (distance >= 0)
        return net.out((kernel @ net.into(x)).relu())

    return Written(
        forward, taps=nn.Parameter(torch.randn(5)), into=nn.Linear(4, 6), out=nn.Linear(6, 2)
    ), TOKENS


def video() -> Written:
    def back(net, x):
        return net.conv(F.pad(x, (1, 1, 1, 1, 2, 0)))

    first, last = (Written(back, conv=nn.Conv3d(*sizes, 3)) for sizes in ((1, 4), (4, 1)))
    return Written(lambda net, x: net.last(F.silu(net.first(x))), first=first, last=last)


FRAMES = torch.randn(2, 1, 5, 4, 4, generator=torch.Generator().manual_seed(10))
FAMILY.add("video that looks back", lambda: (video(), FRAMES), refusal="over='position'")
FAMILY.add("video that looks back, per position", lambda: (video(), FRAMES), options={"over": "position"})


@FAMILY.entry("learned queries of attention")
def learned_queries():
    def forward(net, x):
        return net.out(net.attention(net.queries.expand(len(x), -1, -1), x, x)[0].flatten(1))

    attention = nn.MultiheadAttention(4, 2, batch_first=True)
    queries = {"queries": nn.Parameter(torch.randn(1, 2, 4))}
    return Written(forward, attention=attention, out=nn.Linear(8, 2), **queries), TOKENS
