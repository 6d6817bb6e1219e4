"""The norm modules that step 1 inserts, and the hooks that carry them.

A norm with an absolute eps is scale-invariant only in part: shrink the weight in front of it far
enough and eps takes over. Here eps is relative to that weight, LN(y/s; eps) with s² = ‖W‖²/rows,
so c·W gives the same output as W for every c > 0, and a row of zeros still has a finite gradient. (On a GPU
norms over whole images square what they are given: there W must be between about 1e-18 and 1e18 in size.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from operator import attrgetter
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nap.kernels import statistics
from nap.norms.compiling import guard_hooks
from nap.norms.fused_batchnorm import TELLS, Known, telling
from nap.norms.fused_relu import Rows, leave
from nap.norms.quick import mean_square, quick_norm
from nap.norms.weight_size import row_rms

EPS = 1e-5  # torch's default for LayerNorm; relative to the weight unless a float is asked for
PRODUCTS = "nap_products"  # the child of a module that holds the norms on products in its forward
SOURCES = "nap_products_of"  # in its __dict__: which weights each of them is for
CHILD = "nap_norm"  # the name under which a norm hangs on the module whose output it normalises
# Hooks are kept under a key of their own: the numbers that torch hands out start anew in each process,
# so a pickled model's hook could be overwritten by the next one registered on it.
HOOK: Any = "nap"
_SOURCE = CHILD + "_source"

Eps = float | Literal["relative"]
Layout = Literal["features", "channels", "sample"]


class Norm(nn.Module):
    """LayerNorm (`centre=True`) or RMSNorm with eps relative to the weights in front of it.

    Args:
        width: number of normalised features.
        layout: "features": each position's last axis; "channels": each position's channel axis;
            "sample": channels and space together, as `GroupNorm(1, C)` does.
        spatial: how many axes follow the channel axis.
        rows: output features of the weights in front; by default their first axis.
        gain: a constant factor on top of the learned scale, which still starts at 1.
        before_batch_norm: it has no scale because a BatchNorm follows, which would undo it. A checkpoint from
            when it had one is still taken: the scale becomes a constant (a buffer), as the averages of the
            BatchNorm are those of what was scaled.

    >>> x, weight = torch.randn(2, 8), torch.randn(5, 8)
    >>> norm = Norm(5, eps="relative")
    >>> torch.allclose(norm(x @ weight.T, weight), norm(x @ (100 * weight).T, 100 * weight), atol=1e-5)
    True
    """

    weight: Tensor | None  # a Parameter, but for an old constant in front of a BatchNorm
    bias: nn.Parameter | None
    before_batch_norm = False  # of norms that were pickled before there was such a thing

    def __init__(
        self,
        width: int,
        *,
        centre: bool = True,
        scale: bool = True,
        offset: bool = True,
        eps: Eps = "relative",
        layout: Layout = "features",
        spatial: int = 0,
        rows: int | None = None,
        gain: float = 1.0,
        before_batch_norm: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        self.width, self.centre, self.layout, self.spatial, self.rows = width, centre, layout, spatial, rows
        self.relative = eps == "relative"
        self.eps = EPS if eps == "relative" else float(eps)
        self.gain = gain
        self.before_batch_norm = before_batch_norm
        where: Any = {"device": device, "dtype": dtype}
        self.weight = nn.Parameter(torch.empty(width, **where)) if scale else None
        self.bias = nn.Parameter(torch.empty(width, **where)) if offset else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Scale 1 and offset 0, as PyTorch's norms have it: for a model that comes off the meta device."""
        for part, value in ((self.weight, 1.0), (self.bias, 0.0)):
            if part is not None:
                nn.init.constant_(part, value)

    def forward(self, y: Tensor, *weights: Tensor, scale: Tensor | None = None) -> Tensor:
        """The norm of `y`, the result of `weights`; or of weights whose `row_rms` is known already."""
        unit, eps = None, self.eps
        if self.relative:
            squares = mean_square(weights, self.rows) if scale is None else None
            if squares is not None:
                eps *= squares  # LN(y/s; eps) = LN(y; eps·s²), with no pass over y
            else:
                unit = row_rms(weights, self.rows) if scale is None else scale
        if self.layout == "sample" and (fused := _fused(y)) is not None:
            return self._in_two_passes(y, unit, fused)
        x = _wide(y, unit)
        x = (self._sample(x, eps) if self.layout == "sample" else self._positions(x, eps)).to(y.dtype)
        return x if self.gain == 1.0 else x * self.gain

    def known(self, y: Tensor, *weights: Tensor) -> Known:
        """Of images (N, C, …): what `forward` would do to them, before it is done."""
        return self._known(_wide(y, row_rms(weights, self.rows) if self.relative else None))

    def leaving(self, y: Tensor, *weights: Tensor) -> Tensor:
        """Over the last axis: what `forward` gives, and on it what it was given."""
        unit = row_rms(weights, self.rows) if self.relative else None
        return leave(self(y, scale=unit), Rows(y, unit, self.weight, self.bias, self.eps, self.centre))

    def _known(self, x: Tensor) -> Known:
        mean, variance = statistics.moments(x)
        affine = statistics.layer_norm(mean, variance, centre=self.centre, eps=self.eps)
        return Known(x, mean, variance, statistics.scaled(affine, _like(self.weight, x), _like(self.bias, x)))

    def _positions(self, x: Tensor, eps: float) -> Tensor:
        given, spatial = x, 0 if self.layout == "features" else self.spatial
        x = x.movedim(-1 - spatial, -1)  # of channels-last images no copy is made
        weight, bias = _like(self.weight, x), _like(self.bias, x)
        if self.centre:
            x = F.layer_norm(x, (self.width,), weight, bias, eps)
        else:
            x = F.rms_norm(x, (self.width,), weight, eps)
            x = x if bias is None else x + bias
        return _features_back(x, spatial, given)

    def _sample(self, x: Tensor, eps: float) -> Tensor:
        batched = x if x.ndim == self.spatial + 2 else x.unsqueeze(0)
        weight, bias = _like(self.weight, x), _like(self.bias, x)
        if torch.compiler.is_compiling():  # what the compiler makes of group_norm is several times slower
            out = self._known(batched).applied()
        elif self.centre:
            out = F.group_norm(batched, 1, weight, bias, eps)
        else:
            out = F.rms_norm(batched, batched.shape[1:], None, eps)
            tail = (-1,) + (1,) * self.spatial
            out = out if weight is None else out * weight.view(tail)
            out = out if bias is None else out + bias.view(tail)
        return out.view_as(x)

    def _in_two_passes(self, y: Tensor, unit: Tensor | None, fused: Any) -> Tensor:
        """The same for a whole sample, on a GPU: eps grows with the weights instead of `y` shrinking."""
        eps = self.eps if unit is None else self.eps * unit.square()
        given = [part.to(y.device) for part in (self.weight, self.bias) if part is not None]

        def coefficients(mean: Tensor, variance: Tensor, *parameters: Tensor) -> statistics.Affine:
            rest = [part.to(mean.dtype) for part in parameters]
            scale = rest.pop(0) if self.weight is not None else None
            offset = rest.pop(0) if self.bias is not None else None
            affine = statistics.layer_norm(mean, variance, centre=self.centre, eps=eps)
            factor, shift = statistics.scaled(affine, scale, offset)
            return (factor, shift) if self.gain == 1.0 else (factor * self.gain, shift * self.gain)

        batched = y if y.ndim == self.spatial + 2 else y.unsqueeze(0)
        out: Tensor = fused.by_moments(batched, coefficients, *given)
        return out.view_as(y)

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "_known_square"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A converted model comes out of a file, or is copied: its carriers' hooks come with it."""
        super().__setstate__(state)
        guard_hooks()

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any, **more: Any) -> None:
        """In front of a BatchNorm, a checkpoint's scale is kept as a constant, unless it is 1 throughout."""
        loaded = state_dict.get(f"{prefix}weight")
        if self.before_batch_norm and self.weight is None and isinstance(loaded, Tensor):
            if bool((loaded == 1).all()):
                del state_dict[f"{prefix}weight"]
            else:
                self.__dict__.pop("weight", None)
                self.register_buffer("weight", loaded.detach().clone())
        missing = rest[2]
        before = len(missing)
        super()._load_from_state_dict(state_dict, prefix, *rest, **more)
        _explain(missing, before)

    def extra_repr(self) -> str:
        kind = "layer" if self.centre else "rms"
        eps = f"{self.eps:g}·‖W‖²/rows" if self.relative else f"{self.eps:g}"
        affine = [word for word, part in (("scale", self.weight), ("offset", self.bias)) if part is not None]
        return f"{self.width}, {kind}, over {self.layout}, eps={eps}, {' and '.join(affine) or 'no affine'}"


class ExplainedKey(str):
    """A missing key that PyTorch's error shows with words about nap; for everything else it is the key."""

    __slots__ = ()

    def __format__(self, spec: str) -> str:
        return (
            f"{self!s} (the state dict has no layers of nap: it is of the model before nap.normalize_. Load "
            "it into the plain model and call nap.normalize_ then; files of nap.save bring their layers "
            "along: nap.load(path, plain_model))"
        )


def _explain(missing: list[str], first: int) -> None:
    """Words about nap, once, where a state dict lacks layers of step 1: missing keys from `first` on."""
    if len(missing) > first and not any(isinstance(key, ExplainedKey) for key in missing):
        missing[first] = ExplainedKey(missing[first])


def _fused(y: Tensor) -> Any:
    """The module with our own passes over images, where it can be used on `y`; else None."""
    if not y.is_cuda or torch.compiler.is_compiling() or torch._C._functorch.is_batchedtensor(y):
        return None
    fused = _kernels()
    return fused if fused is not None and fused.fits(y) else None


@cache
def _kernels() -> Any:
    try:
        from nap.kernels import statistics_triton
    except ImportError:  # Triton comes with the CUDA builds of torch only
        return None
    return statistics_triton


def _wide(y: Tensor, unit: Tensor | None) -> Tensor:
    """`y` in units of the weights in front of it, in float32 or better."""
    x = y.float() if y.dtype in (torch.bfloat16, torch.float16) else y
    return x if unit is None else x / unit.to(x.dtype)


def _features_back(x: Tensor, spatial: int, given: Tensor) -> Tensor:
    """The last axis back in front of those of space, in memory as it was given: the model may call `view`."""
    x = x.movedim(-1, -1 - spatial)
    return x.contiguous() if spatial and given.is_contiguous() else x


def _like(parameter: Tensor | None, x: Tensor) -> Tensor | None:
    return None if parameter is None else parameter.to(x.device, x.dtype)


@dataclass(frozen=True)
class Section:
    """A run of `length` features in each period of a fused output; `name` None means left as it is."""

    length: int
    name: str | None = None
    head: int = 0  # features per head; 0: one norm over the whole section


class FusedNorm(nn.Module):
    """Norms for parts of one output: queries and keys of a fused projection, the gate of a GLU.

    The feature axis is `periods` repetitions of `sections`: [Q | K | V] is one period of three,
    [q₀ k₀ v₀ q₁ k₁ v₁ …] is one period per head, and (g₀ u₀ g₁ u₁ …) is a period of two per unit.
    """

    def __init__(self, periods: int, sections: Sequence[Section], norms: dict[str, Norm], spatial: int = 0):
        super().__init__()
        self.periods, self.sections, self.spatial = periods, tuple(sections), spatial
        self.parts = nn.ModuleDict(norms)

    def forward(self, y: Tensor, *weights: Tensor, bias: Tensor | None = None) -> Tensor:
        x = y.movedim(-1 - self.spatial, -1)
        pieces, biases = self._pieces(x), self._pieces(bias)
        relative = any(norm.relative for norm in self.norms)
        scale = row_rms(weights, self.norms[0].rows) if relative else None  # once for all parts
        for i, section in enumerate(self.sections):
            if section.name is not None:
                piece = pieces[i] if bias is None else pieces[i] - biases[i]
                pieces[i] = self._normalise(piece, section, scale)
        x = pieces[0] if len(pieces) == 1 else torch.cat(pieces, -1)  # of one it would be a copy
        x = x.flatten(-2) if self.periods > 1 else x
        return _features_back(x, self.spatial, y)

    @property
    def norms(self) -> list[Norm]:
        return list(self.parts.values())  # type: ignore[arg-type]

    def _pieces(self, x: Tensor | None) -> list[Tensor]:
        if x is None:
            return []
        x = x.unflatten(-1, (self.periods, -1)) if self.periods > 1 else x
        return list(x.split([section.length for section in self.sections], -1))

    def _normalise(self, piece: Tensor, section: Section, scale: Tensor | None) -> Tensor:
        norm = self.parts[section.name or ""]
        if section.head:
            return norm(piece.unflatten(-1, (-1, section.head)), scale=scale).flatten(-2)
        if self.periods > 1:
            return norm(piece.flatten(-2), scale=scale).view_as(piece)
        return norm(piece, scale=scale)

    def covers_all(self) -> bool:
        return all(section.name is not None for section in self.sections)

    def normalised_features(self) -> set[int]:
        """Indices of the output features that a norm covers."""
        period = sum(section.length for section in self.sections)
        covered: set[int] = set()
        start = 0
        for section in self.sections:
            if section.name is not None:
                for p in range(self.periods):
                    covered.update(range(p * period + start, p * period + start + section.length))
            start += section.length
        return covered

    def extra_repr(self) -> str:
        text = " | ".join(f"{s.name or '·'}:{s.length}" for s in self.sections)
        return f"{self.periods} × [{text}]"


@dataclass(frozen=True)
class Source:
    """Where a carried norm finds the tensors in front of it, as attribute paths of its carrier."""

    weights: tuple[str, ...] = ()
    bias: str | None = None  # cancelled per feature, where only a part of the output is normalised
    zero: tuple[str, ...] = ()  # biases taken out of use, in modules that cannot do without them


def has_parts(module: nn.Module) -> bool:
    """Whether there are modules in it, other than a norm of ours that hangs on it."""
    return any(name not in (CHILD, PRODUCTS) for name, _ in module.named_children())


def normalise_output(module: nn.Module, args: Any, output: Tensor) -> Tensor:
    """Forward hook: the output through the norm that hangs on `module`."""
    norm: Any = module._modules[CHILD]
    source = module.__dict__[_SOURCE]
    own = module._parameters
    weights: Any = [own[path] if path in own else attrgetter(path)(module) for path in source.weights]
    if len(weights) == 1 and source.bias is None and type(norm) is Norm:
        out = quick_norm(norm, weights[0], output)
        if out is not None:
            return out
    if source.bias is not None:
        return norm(output, *weights, bias=attrgetter(source.bias)(module))
    if TELLS in module.__dict__ and torch.compiler.is_compiling():
        if norm.layout == "features":
            return norm.leaving(output, *weights)
        if output.ndim == 4:
            return telling(norm.known(output, *weights), output.dtype)
    return norm(output, *weights)


def normalise_input(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Forward pre-hook: the first input of an activation or BatchNorm through the norm that hangs on it."""
    if not args:
        raise TypeError(
            f"this {type(module).__name__} has a norm on its input, which must come first and unnamed: "
            "call it as module(x)"
        )
    norm, (entered, *rest) = getattr(module, CHILD), args
    if TELLS in module.__dict__ and torch.compiler.is_compiling():
        if norm.layout == "features":
            return norm.leaving(entered), *rest
        if entered.ndim == 4:
            return telling(norm.known(entered), entered.dtype), *rest
    return norm(entered), *rest


def keep_zero(module: nn.Module, incompatible_keys: Any) -> None:
    """Hook after `load_state_dict`: a checkpoint from before the conversion revives no bias."""
    sources = [module.__dict__.get(CHILD + "_source"), *module.__dict__.get(SOURCES, {}).values()]
    for path in (path for source in sources if source is not None for path in source.zero):
        module.get_parameter(path).data.zero_()
