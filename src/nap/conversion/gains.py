"""Gains for layers that start small or at zero: a matrix at full norm times a number that learns the scale.

A gain is a power of two, so the matrix times its inverse is exact, and the network computes what it did, to
the last bit. A matrix of zeros has no direction: it gets a random one and a gain of zero. Then the network
computes what it did, too, but the first update moves the gain alone, and along that direction.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

import torch
from torch import Tensor, nn

from nap.conversion.placement import Note, Options, Placement
from nap.norms.gain import GAIN
from nap.projection.plan import measured
from nap.projection.policies import SMALL_BRANCH, Sizes, is_small_output, which
from nap.tracing.record import Flow
from nap.weights import Weight, WeightTable

_LINEAR = (nn.Linear, nn.modules.conv._ConvNd)


@dataclass(frozen=True)
class _Layer:
    """A layer that may get a gain, and its weight."""

    site: str
    row: Weight


def place_gains(
    model: nn.Module, flows: Sequence[Flow], table: WeightTable, options: Options
) -> tuple[list[Placement], list[Note]]:
    """A placement for each layer that gets a gain, and notes on those that cannot."""
    if options.gains == "none":
        return [], []
    parameters = dict(model.named_parameters())
    sizes = measured(table, parameters, (), "tensor")
    rows = _asked(model, table, sizes, options)
    placements: list[Placement] = []
    notes: list[Note] = []
    for row in rows:
        layers = [_Layer(site, row) for site in _sites(flows, row.name)]
        obstacle = next(filter(None, (_obstacle(model, flows, layer) for layer in layers)), None)
        if obstacle is None:
            placements += _placements(model, layers, sizes)
        elif options.gains == "small":
            notes.append(Note(row.name, f"starts small, and gets no gain: {obstacle}"))
        else:
            raise ValueError(f"{row.name} can have no gain: {obstacle}; leave it out of gains=[...]")
    return placements, notes


def _asked(model: nn.Module, table: WeightTable, sizes: Sizes, options: Options) -> list[Weight]:
    """The weights that are to be scaled by gains."""
    if options.gains == "small":
        return [row for row in table.values() if _is_small(row, table, sizes) and not _gained(model, row)]
    by_id = {id(p): name for name, p in model.named_parameters()}
    modules, rows = dict(model.named_modules(remove_duplicate=False)), {}
    for name in options.gains:
        if name not in modules:
            near = get_close_matches(name, modules, n=1, cutoff=0.5)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"gains names {name!r}, which is no module of the model{hint}")
        weight = getattr(modules[name], "weight", None)
        row = table.get(by_id.get(id(weight), ""))
        if row is None or which(row) is None:
            why = "has no weight" if row is None else f"its role is {row.role}"
            raise ValueError(
                f"gains names {name!r}, which is no output layer, look-up table or end of a residual branch "
                f"({why}); name one of these, or leave it to gains='small'"
            )
        if not _gained(model, row):
            rows[row.name] = row
    return list(rows.values())


def _is_small(row: Weight, table: WeightTable, sizes: Sizes) -> bool:
    """Zero branches and outputs are, and those far below their fan-in radius; tables are free to grow."""
    kind = which(row)
    if kind == "branches":
        return sizes.size(row.name) < SMALL_BRANCH
    return kind == "output" and row.place != "tokens" and is_small_output(row.name, sizes, table)


def _gained(model: nn.Module, row: Weight) -> bool:
    return GAIN in model.get_submodule(row.name.rpartition(".")[0])._modules


def _sites(flows: Sequence[Flow], name: str) -> Iterator[str]:
    """The modules that use a weight, tied ones each."""
    found = (site for flow in flows for (site, _, _), use in flow.uses.items() if name in use.sources)
    return iter(dict.fromkeys(found))


def _obstacle(model: nn.Module, flows: Sequence[Flow], layer: _Layer) -> str | None:
    """Why no gain can hang in front of this layer."""
    module, own = model.get_submodule(layer.site), model.get_parameter(layer.row.name)
    if getattr(module, "weight", None) is not own:
        where = f"{layer.site or 'the model'} ({type(module).__name__})"
        return f"it is used inside {where}, not by a layer of its own"
    used = [use for flow in flows for (site, _, _), use in flow.uses.items() if site == layer.site]
    if any(use.sources != {layer.row.name} for use in used):
        return f"{layer.site} computes with other weights, too"
    if isinstance(module, (nn.Embedding, *_LINEAR)):
        return None
    given = [flow.given[layer.site] for flow in flows if layer.site in flow.given]
    if len(given) < len(flows) or not _is_linear(module, given[0]):
        return f"{layer.site} ({type(module).__name__}) is not linear in its first input"
    return None


@torch.no_grad()
def _is_linear(module: nn.Module, shape: torch.Size) -> bool:
    """Whether f(2x) − f(0) = 2(f(x) − f(0)), by trying."""
    like = next(module.parameters())
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(like)
    try:
        nothing, once, twice = (module(factor * x) for factor in (0.0, 1.0, 2.0))
        return torch.allclose(twice - nothing, 2 * (once - nothing), rtol=1e-4, atol=1e-5)
    except (RuntimeError, TypeError, AttributeError, IndexError):
        return False


def _placements(model: nn.Module, layers: Sequence[_Layer], sizes: Sizes) -> Iterator[Placement]:
    """One for each layer that uses the weight; the first one rescales it."""
    for number, layer in enumerate(layers):
        module, size = model.get_submodule(layer.site), sizes.size(layer.row.name)
        gain = 2.0 ** round(math.log2(size)) if size > 0 else 0.0
        yield Placement(
            layer.site,
            "scale input",
            type(module).__name__,
            f"starts at {size:.2g} of its fan-in radius" if size else "all zeros: gets a random direction",
            gain=gain,
            offset=False,
            weights=("weight",) if number == 0 else (),
            like=layer.row.name,
            radius=sizes.full[layer.row.name].norm().item(),
        )


@torch.no_grad()
def rescale_(weight: Tensor, placement: Placement) -> None:
    """The weight at full norm: W/g, or of zeros a random direction, the same for the same module."""
    zero = not weight.any()
    if zero != (placement.gain == 0):
        found = "all zeros" if zero else "not zero"
        raise ValueError(
            f"{placement.like} is {found}, which it was not when the plan was made: the plan is for another "
            "model; make a new one with nap.plan(model, args)"
        )
    if not zero:
        weight.div_(placement.gain)
        return
    generator = torch.Generator().manual_seed(zlib.crc32(placement.module.encode()))
    direction = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
    weight.copy_(direction * (placement.radius / direction.norm()))
