"""Whether what a conversion says of every weight is so, found by scaling weights in float64 below autograd.

A matrix is in order if the network is invariant to its scale, if nothing nonlinear sees its scale, or if
the plan names it. Anything else is a silent error. No list of nonlinear operations takes part (see `aten`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

import nap
from nap.tracing.eager import as_written
from nap.weights import Role, WeightTable

from .aten import Bend, Key, Pass, watch
from .checks import gap
from .double import double_run
from .oracle import awake

EXACT = 1e-9
SMALL, LARGE = 1e6, 1e8
GROWS = (LARGE / SMALL) ** 0.5  # between bounded (1) and proportional (100)
FAR = 30  # a bounded input moves by a few times its size
MASK = 1e30
NO_EPS = 1e-30
NOISE = 1e-10  # a gradient times its parameter, relative to the largest such product


def unsound(
    model: nn.Module, plan: nap.Plan, args: Any, kwargs: Mapping[str, Any], *, batch_statistics: bool = False
) -> list[str]:
    """What is wrong with what the plan says of the weights of a converted model, in words."""
    trial = Trial(model, args, kwargs, batch_statistics)
    table, named = nap.weight_groups(model), _named(plan)
    return [
        *_untrue_roles(trial, table),
        *_false_claims(trial, table),
        *_false_approximations(model, args, kwargs, table),
        *_unreached(trial, table, named),
        *_seen_scales(trial, table, named),
        *_biases(model, plan, table),
    ]


def doubled(tree: Any) -> Any:
    """A copy of arguments in float64, and of objects that hold tensors."""

    def leaf(x: Any) -> Any:
        if isinstance(x, Tensor):
            return x.double() if x.is_floating_point() else x.to(torch.complex128) if x.is_complex() else x
        if hasattr(x, "__dict__") and not callable(x):
            x = copy(x)
            x.__dict__.update({key: doubled(value) for key, value in vars(x).items()})
        return x

    return tree_map(leaf, tree)


class Trial:
    """A copy of a model in float64, to scale weights of."""

    def __init__(self, model: nn.Module, args: Any, kwargs: Mapping[str, Any], batch_statistics: bool):
        self.model = awake(model)
        self.args, self.kwargs = doubled((args, dict(kwargs)))
        for module in self.model.modules():
            norm = isinstance(module, nn.modules.batchnorm._BatchNorm)
            module.train(batch_statistics and norm)
        self.parameters = dict(self.model.named_parameters())
        self.known: dict[str, bool] = {}
        self._names: tuple[str, ...] = ()
        self._grown: tuple[Pass, ...] = ()
        self.base = self.run({})
        self.weights = {n for n in self.base.acting if self.parameters[n].ndim >= 2}

    def run(self, factors: Mapping[str, float], eps: float | None = None) -> Pass:
        with self._scaled(factors):
            return watch(self.model, self.args, self.kwargs, self.known, eps=eps)

    def grown(self, names: tuple[str, ...]) -> tuple[Pass, ...]:
        """Forwards with weights that are much larger, and larger still."""
        if names != self._names:  # of the last ones that were asked for
            self._names = names
            self._grown = tuple(self.run(dict.fromkeys(names, c)) for c in (SMALL, LARGE))
        return self._grown

    @contextmanager
    def _scaled(self, factors: Mapping[str, float]) -> Iterator[None]:
        state = {n: t.clone() for n, t in self.model.state_dict().items()}
        with torch.no_grad():
            for name, factor in factors.items():
                self.parameters[name].mul_(factor)
        try:
            yield
        finally:
            with torch.no_grad():
                for name, tensor in self.model.state_dict().items():
                    tensor.copy_(state[name])


def _named(plan: nap.Plan) -> set[str]:
    return {note.name for note in plan.left_alone} | set(plan.options.allow) | set(plan.options.exclude)


def _is_named(weight: str, named: Collection[str]) -> bool:
    return any(name == weight or weight.startswith(f"{name}.") for name in named) or (
        "" in named and "." not in weight
    )


def _untrue_roles(trial: Trial, table: WeightTable) -> Iterator[str]:
    for name in sorted(trial.base.direct & trial.weights):
        if table[name].role in (Role.BIAS, Role.AFFINE, Role.UNUSED):
            yield f"{name} enters a product, and its role is {table[name].role}"


def _false_claims(trial: Trial, table: WeightTable) -> Iterator[str]:
    """All weights of a role are scaled at once, each by its own factor; one by one only if that shows."""
    exact = [w.name for w in table.of(Role.SCALE_INVARIANT)]
    if exact and gap(trial.base.output, trial.run(_factors(exact)).output) > EXACT:
        for name in exact:
            change = max(gap(trial.base.output, trial.run({name: c}).output) for c in (0.5, 3.0))
            if change > EXACT:
                yield f"{name} is called scale-invariant, and the output changes by {change:.1e}"


def _false_approximations(
    model: nn.Module, args: Any, kwargs: Mapping[str, Any], table: WeightTable
) -> Iterator[str]:
    """The norms that a model came with count as while training, and without their eps."""
    near = [w.name for w in table.of(Role.NORMALISED)]
    if not near:
        return
    trial = Trial(model, args, kwargs, batch_statistics=True)
    if _far(trial, near) > 1e-6:
        for name in near:
            if (change := _far(trial, [name])) > 1e-6:
                yield f"{name} is called normalised, and the output changes by {change:.1e}"


def _far(trial: Trial, names: Collection[str]) -> float:
    """How far the output is from its limit when weights grow: of 1/c, or where norms cancel c, of 1/c²."""
    return gap(*(trial.run(dict.fromkeys(names, c), NO_EPS).output for c in (1e5, 1e8)))


def _factors(names: Collection[str]) -> dict[str, float]:
    return {name: 0.5 + 2.5 * ((i * 0.618) % 1) for i, name in enumerate(names)}


def _unreached(trial: Trial, table: WeightTable, named: Collection[str]) -> Iterator[str]:
    for name in trial.parameters:
        if table[name].role is not Role.UNUSED or name in trial.base.touched or _is_named(name, named):
            continue
        yield f"{name} ({table[name].role}) is not used by the example, and no note says so"


def _seen_scales(trial: Trial, table: WeightTable, named: Collection[str]) -> Iterator[str]:
    """Weights that are neither invariant nor named, and whose scale a hidden nonlinearity sees.

    What only adds to another weight's way into it, which is named, goes with that; and a table may be
    added to the logits of attention.
    """
    settled = (Role.SCALE_INVARIANT, Role.NORMALISED, Role.UNNORMALISED)
    known = {n for n in trial.weights if table[n].role is Role.UNNORMALISED or _is_named(n, named)}
    open_ = sorted(n for n in trial.weights - known if table[n].role not in settled)
    roles = [[n for n in open_ if table[n].role is role] for role in Role]
    suspects = [name for names in roles if names and _grow_together(trial, names) for name in names]
    excused = {key for name in sorted(known if suspects else ()) for key in _bent(trial, name)}
    for name in suspects:
        where = [key for key in _bent(trial, name) if key not in excused]
        if table[name].role is Role.EMBEDDING:
            where = [key for key in where if "softmax" not in key[1]]
        if where:
            yield f"{name} ({table[name].role}) is seen by {_places(where)}"
        elif where := _powers(trial, name):
            yield f"{name} ({table[name].role}) enters {_places(where)} as a power or product"
    yield from _multiplied(trial, table, open_, known)


def _multiplied(
    trial: Trial, table: WeightTable, open_: Collection[str], known: Collection[str]
) -> Iterator[str]:
    """Weights that are not named, where two results that follow the scales of weights are multiplied."""
    loose = sorted(
        n for n in {*known, *open_} if table[n].role not in (Role.SCALE_INVARIANT, Role.NORMALISED)
    )
    both = {i for i, sides in enumerate(_sides(trial, *loose)) if trial.base.pairs[i].hidden and all(sides)}
    told = [_sides(trial, name) for name in sorted(known)] if both else []
    both -= {i for i in both if any(any(sides[i]) for sides in told if sides)}
    for name in open_ if both else ():
        sides = _sides(trial, name)
        if where := [trial.base.pairs[i].key for i in sorted(both) if sides and any(sides[i])]:
            yield f"{name} ({table[name].role}) is multiplied with another result in {_places(where)}"


def _sides(trial: Trial, *names: str) -> list[tuple[bool, bool]]:
    """For each product of two results, whether the one and the other follow the scale."""
    if not names:
        return []
    base, near, far = (run.pairs for run in (trial.base, *trial.grown(names)))
    kinds = [[(pair.key, *(t.shape for t in pair.inputs)) for pair in run] for run in (base, near, far)]
    if not kinds[0] == kinds[1] == kinds[2]:
        return []

    def grows(i: int, side: int) -> bool:
        b, n, f = (run[i].inputs[side] for run in (base, near, far))
        return bool(f.isfinite().all()) and _grows([b], [n], [f])

    return [(grows(i, 0), grows(i, 1)) for i in range(len(base))]


def _grow_together(trial: Trial, names: Collection[str]) -> bool:
    """Whether anything shows when all are scaled at once: mostly nothing does."""
    return bool(_bent(trial, *names) or _powers(trial, *names))


def _bent(trial: Trial, *names: str) -> list[Key]:
    """The hidden nonlinearities whose input follows the scale."""
    base, near, far = trial.base, *trial.grown(names)
    if _keys(base.bends) == _keys(far.bends) == _keys(near.bends):
        triples = list(zip(base.bends, near.bends, far.bends, strict=True))
        return [
            b.key
            for b, n, f in triples
            if b.hidden and not (b.idle and f.idle) and _grows(b.inputs, n.inputs, f.inputs)
        ]
    hidden = {b.key for b in base.bends if b.hidden}  # scaled, the model takes other ways
    size = {key: _largest(base.bends, key) for key in hidden}
    return [
        key
        for key, was in size.items()
        if _largest(far.bends, key) > max(FAR * was, GROWS * _largest(near.bends, key))
    ]


def _keys(bends: list[Bend]) -> list[tuple[Key, list[torch.Size]]]:
    return [(bend.key, [t.shape for t in bend.inputs]) for bend in bends]


def _largest(bends: list[Bend], key: Key) -> float:
    return max((_magnitude(t) for b in bends if b.key == key for t in b.inputs), default=0.0)


def _grows(base: list[Tensor], near: list[Tensor], far: list[Tensor]) -> bool:
    size = max(map(_magnitude, base), default=0.0)
    moved_far = max((_moved(b, f) for b, f in zip(base, far, strict=True)), default=0.0)
    moved_near = max((_moved(b, n) for b, n in zip(base, near, strict=True)), default=0.0)
    return moved_far > FAR * size and moved_far >= GROWS * moved_near


def _moved(before: Tensor, after: Tensor) -> float:
    open_ = before.isfinite() & (before.abs() < MASK) & (after != -torch.inf)  # other entries are masked now
    return _magnitude((after - before)[open_], torch.inf)


def _magnitude(tensor: Tensor, overflow: float = 0.0) -> float:
    if tensor.numel() == 0:
        return 0.0
    size = tensor.abs().double()
    return float(torch.where(size < MASK, size, overflow).max())


def _powers(trial: Trial, *names: str) -> list[Key]:
    """Where factors of products follow the scale, but not in proportion: squares and the like."""
    runs = base, once, twice = trial.base, *trial.grown(names)
    if any([(k, t.shape) for k, t in r.factors] != [(k, t.shape) for k, t in base.factors] for r in runs):
        return []
    found = []
    for (key, b), (_, n), (_, f) in zip(base.factors, once.factors, twice.factors, strict=True):
        near, far = (n - b) / SMALL, (f - b) / LARGE
        if _grows([b], [n], [f]) and _magnitude(far - near) > 0.5 * _magnitude(far):
            found.append(key)
    return found


def _places(keys: list[Key]) -> str:
    return ", ".join(dict.fromkeys(f"{op} in {site or 'the model'}" for site, op in keys))


def _biases(model: nn.Module, plan: nap.Plan, table: WeightTable) -> Iterator[str]:
    """Biases of plain layers that were left in front of a norm on the layer's whole output."""
    for placement in plan.placements:
        if placement.action != "normalise output" or placement.sections:
            continue
        bias = getattr(model.get_submodule(placement.module), "bias", None)
        if isinstance(bias, Tensor) and bias.any():
            yield f"{placement.module}.bias was left in front of its norm"


def lost_gradients(original: nn.Module, model: nn.Module, args: Any, kwargs: Mapping[str, Any]) -> list[str]:
    """Parameters with no gradient in train mode, or pure rounding, where the original had none such."""
    before, after = (_gradients(net, args, kwargs) for net in (original, model))
    found = []
    for name, size in after.items():
        if name not in before and all(not size for size in _near(name, before)):
            continue  # a norm behind a layer that gets none either
        if before.get(name, 1.0) is not None and size is None:
            found.append(f"{name} has no gradient")
        elif _is_rounding(size) and not _is_rounding(before.get(_replaced(name))):
            found.append(f"the gradient of {name} is rounding: {size:.1e}")
    return found


def _is_rounding(size: float | None) -> bool:
    return size is not None and 0 < size < NOISE


def _replaced(name: str) -> str:
    """The bias that the offset of a norm stands for: what cancels the one cancels the other."""
    return name.replace("nap_norm.bias", "bias")


def _near(name: str, sizes: Mapping[str, float | None]) -> list[float | None]:
    """What is known of the parameters of the module that a norm hangs on."""
    carrier = name.partition("nap_norm")[0]
    return [size for other, size in sizes.items() if other.startswith(carrier)]


def _gradients(model: nn.Module, args: Any, kwargs: Mapping[str, Any]) -> dict[str, float | None]:
    """The size of each parameter's gradient times that of the parameter; None for no gradient at all."""
    twin = awake(model).train()
    args, kwargs = doubled((args, dict(kwargs)))
    with double_run(), as_written():  # what a gradient computes again would not be in float64
        leaves = [t for t in tree_leaves(twin(*args, **kwargs)) if isinstance(t, Tensor) and t.requires_grad]
        generator = torch.Generator().manual_seed(2)
        loss = torch.zeros((), dtype=torch.float64)
        for leaf in leaves:
            flat = torch.view_as_real(leaf).flatten() if leaf.is_complex() else leaf.flatten().double()
            flat = flat[flat.isfinite()]
            loss = loss + flat @ torch.randn(flat.shape, generator=generator, dtype=torch.float64)
        loss.backward()
    sizes = {
        name: None if p.grad is None else float(p.grad.norm() * p.detach().norm())
        for name, p in twin.named_parameters()
        if p.requires_grad
    }
    top = max((size for size in sizes.values() if size is not None), default=0.0) or 1.0
    return {name: size if size is None else size / top for name, size in sizes.items()}
