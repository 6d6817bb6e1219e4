"""Step 2 of NaP: weights go back to the norm they started with, after every update or every k-th.

First the decision, a value that can be printed (`ProjectionPlan`); then the `Projector` that carries
the rules of `nap.affine` to a model and its optimizer; last, what is refused and why.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from difflib import get_close_matches
from functools import partial
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from nap.affine import (
    apply_,
    check_joint,
    decay_scale_offset,
    joint_scale_offset,
    norms_like,
    norms_of,
    pairs_of,
    project_tensors_,
    refuse,
)
from nap.weights import WEIGHT_ROLES, Role, Weight, weight_groups

Action = Literal["project", "joint", "decay", "free"]
Excluded = str | nn.Parameter | nn.Module

_WHY = {
    Role.SCALE_INVARIANT: "the function stays the same",
    Role.NORMALISED: "the function stays the same, but for the eps of its norm",
    Role.JOINT: "fixes its share of the sum that gets normalised",
    Role.CHAIN: "fixes the scale of a linear chain",
    Role.OUTPUT: "pins the scale of the output",
    Role.EMBEDDING: "fixes the scale of the table",
    Role.WEIGHT: "not traced; Algorithm 1 takes every weight",
    Role.UNUSED: "the example forward never used it; treated like any other weight",
}


@dataclass(frozen=True)
class ProjectionRow:
    """What happens to one parameter, and why."""

    name: str
    role: Role
    action: Action
    reason: str
    radius: float | None = None  # ‖W‖ of the whole tensor as first measured
    norms: int = 0  # how many norms are kept apart: 1, or one for each row or expert

    def at(self, radius: Tensor | None) -> ProjectionRow:
        """This row with its radius, if it has one."""
        return self if radius is None else replace(self, radius=radius.norm().item(), norms=radius.numel())


@dataclass(frozen=True)
class ProjectionPlan:
    """Every parameter of a model with what a `Projector` does to it; `print` it to read it."""

    rows: tuple[ProjectionRow, ...]

    def names(self, *actions: Action) -> list[str]:
        """The parameters that get one of these treatments, in the model's order."""
        return [row.name for row in self.rows if row.action in actions]

    def __str__(self) -> str:
        wide = max([len(row.name) for row in self.rows] + [9])
        lines = [f"{'parameter':{wide}}  {'radius':>9}  {'role':15}  policy"]
        for row in self.rows:
            radius = "" if row.radius is None else f"{row.radius:.4g}"
            apart = f" ({row.norms} norms)" if row.norms > 1 else ""
            verb = {"project": "projected", "free": "left free"}.get(row.action, row.action)
            lines.append(f"{row.name:{wide}}  {radius:>9}  {row.role:15}  {verb}{apart}: {row.reason}")
        return "\n".join(lines)

    def to_json(self) -> list[dict[str, Any]]:
        return [asdict(row) for row in self.rows]


def decide(row: Weight, ndim: int, per: str, output: str, affine: Action) -> tuple[Action, str]:
    """What to do with a parameter of this role, and the reason: the policy of `Projector`."""
    if row.role is Role.AFFINE:
        reasons = {"joint": "scale and offset together to norm √d", "decay": "pulled towards (1, 0)"}
        return affine, reasons.get(affine, "affine='free'")
    if row.role not in WEIGHT_ROLES or (row.role is Role.UNUSED and ndim < 2):
        return "free", "not a weight"
    if row.role is Role.OUTPUT and output == "free":
        return "free", "output='free'"
    if per == "row" and row.role in (Role.SCALE_INVARIANT, Role.NORMALISED):
        return "project", "the function stays the same only where BatchNorm follows"
    return "project", _WHY[row.role]


class Projector:
    """Keeps the weights of `model` at the norms that they have now (step 2 of NaP, Algorithm 1).

    `plan` says what happens to each parameter. The policy, by role (`nap.weight_groups`):

    - weights of every kind are projected. For scale-invariant and normalised ones this leaves the
      function as it is; for joint and chain weights and embeddings it fixes a scale that the paper's
      "for parameter W_l in network" fixes too. Matrices that were not traced or not reached (σ of a
      noisy layer in eval mode) count as weights. Each tensor has its own radius, so μ and σ of a
      noisy layer have two; tied weights are projected once.
    - the output layer is projected too, which pins the scale of the logits: in the long run that is
      what helps, but `output="free"` suits a head that starts near zero or must grow.
    - scale and offset of norms are left alone (`affine="free"`, enough for most runs of the paper),
      put at joint norm √d ("joint", exact where only ReLU-like activations follow), or pulled towards
      (1, 0) ("decay"). A norm that feeds the output layer sets the scale of the output: under
      "joint" that scale is pinned.
    - biases are left free: no norm of theirs is to be kept.

    Args:
        every: project after every so many real updates.
        per: "tensor": one norm a weight, the symmetry of LayerNorm; "row": one for each output
            feature, the symmetry of BatchNorm. Stacked experts have norms of their own either way.
        decay: how far "decay" pulls at each projection, 1 − α in the paper's U_decay; the paper says
            "mild", and 1e-3 forgets half a drift in some 700 projections.
        exclude: names of parameters or modules, or these themselves; left free.

    Copies of `model` are not affected. A copied or unpickled `Projector` goes with its own copy of
    the model and is attached to nothing; hooks also vanish from copied or unpickled optimizers, so
    look at `attached` and attach again, or call `project_()` yourself after each update.

    >>> model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.LayerNorm(2))
    >>> _ = model[0].weight.data.fill_(1.0)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> projector = Projector(model).attach(optimizer)
    >>> print(projector.plan)
    parameter     radius  role             policy
    0.weight           2  weight           projected: not traced; Algorithm 1 takes every weight
    1.weight              affine           left free: affine='free'
    1.bias                affine           left free: affine='free'
    >>> model(torch.randn(4, 2)).square().sum().backward()
    >>> optimizer.step()
    >>> projector.norm_ratios(), projector.updates
    ({'0.weight': 1.0}, {'0.weight': 1})
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        every: int = 1,
        per: Literal["tensor", "row"] = "tensor",
        output: Literal["project", "free"] = "project",
        affine: Literal["free", "joint", "decay"] = "free",
        decay: float = 1e-3,
        exclude: Excluded | Iterable[Excluded] = (),
    ):
        _check_options(every, decay, per=per, output=output, affine=affine)
        parameters = _readable(model)
        table, left_out = weight_groups(model), _names_in(model, exclude)
        rows = [
            ProjectionRow(name, row.role, "free", "excluded")
            if name in left_out
            else ProjectionRow(name, row.role, *decide(row, parameters[name].ndim, per, output, affine))
            for name, row in table.items()
        ]
        plan = ProjectionPlan(tuple(rows))
        acted = plan.names("project", "joint", "decay")
        _check_fit(plan, parameters, output)
        self._pairs = pairs_of([table[name] for name in plan.names("joint", "decay")])
        if affine == "joint":
            check_joint(self._pairs, table, parameters)
        self._radii = {name: _measured(table[name], parameters[name], per) for name in plan.names("project")}
        _check_radii(self._radii, parameters)
        self.plan = ProjectionPlan(tuple(row.at(self._radii.get(row.name)) for row in rows))
        self._settings: dict[str, Any] = {"every": every, "per": per, "output": output, "affine": affine}
        self._settings |= {"decay": decay} if affine == "decay" else {}
        self._shapes = {name: parameters[name].shape for name in acted}
        self._slots = {
            name: (model.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2]) for name in acted
        }
        self._updates: dict[str, int | Tensor] = dict.fromkeys(acted, 0)
        self._hooks: list[_AfterStep] = []

    def project_(self) -> None:
        """Project now. It counts as no update, and needs no optimizer."""
        self._act_(self._slots)

    @torch.no_grad()
    def _act_(self, names: Iterable[str], when: Tensor | None = None) -> None:
        held: dict[str | None, Tensor] = {name: self._parameter(name) for name in names}
        projected = [name for name in held if name in self._radii]
        for name in projected:
            self._radii[name] = self._radii[name].to(held[name].device)
        project_tensors_([held[n] for n in projected], [self._radii[n] for n in projected], when=when)
        rule: Any = partial(joint_scale_offset, stacked=1)
        if self._settings["affine"] == "decay":
            rule = partial(decay_scale_offset, decay=self._settings["decay"])
        pairs = [(held.get(s), held.get(o)) for s, o in self._pairs if s in held or o in held]
        apply_(rule, pairs, when=when)

    def _parameter(self, name: str) -> Tensor:
        # looked up at each call: .to(), a change of dtype and FSDP may put another tensor in its place
        module, leaf = self._slots[name]
        parameter = module._parameters.get(leaf)
        if parameter is None or parameter.shape != self._shapes[name]:
            now = "is gone" if parameter is None else f"has the shape {list(parameter.shape)}"
            was = f"had {list(self._shapes[name])} when its norm was measured"
            raise ValueError(f"{name} {now}, and {was}; build a new Projector after changing the model")
        return parameter

    def attach(self, *optimizers: Any) -> Self:
        """Project after every `every`-th real update of these optimizers, each the weights it holds.

        A step that a `GradScaler` skips is no update, whether or not the optimizer is fused. Where
        several optimizers share the work, hand them over in one call.
        """
        names = {id(self._parameter(name)): name for name in self._slots}
        new: list[_AfterStep] = []
        for optimizer in map(_hookable, optimizers):
            kind, present = type(optimizer).__name__, optimizer._optimizer_step_post_hooks.values()
            if any(isinstance(h, _AfterStep) for h in present) or any(h.optimizer is optimizer for h in new):
                raise ValueError(f"this {kind} has a Projector already; call detach() on that one first")
            held = [names[id(p)] for g in optimizer.param_groups for p in g["params"] if id(p) in names]
            if not held:
                refuse([], f"this {kind} holds no parameter of the plan", "build it from this very model")
            for pair in self._pairs if self._settings["affine"] == "joint" else ():
                if len({name in held for name in filter(None, pair)}) > 1:
                    refuse(pair, f"move together, but this {kind} holds only one of them", "give it both")
            new.append(_AfterStep(self, optimizer, held))
        covered = {name for hook in [*self._hooks, *new] for name in hook.names}
        if missing := [name for name in self._slots if name not in covered]:
            way = f"attach all optimizers in one call, attach(a, b), or build with exclude={missing!r}"
            refuse(missing, "held by no attached optimizer, so never projected", way)
        for hook in new:
            hook.handle = hook.optimizer.register_step_post_hook(hook)
        self._hooks += new
        return self

    def detach(self) -> None:
        """Take the hooks off every optimizer; radii and counts stay."""
        for hook in self._hooks:
            hook.handle.remove()
        self._hooks = []

    @property
    def attached(self) -> tuple[Optimizer, ...]:
        """The optimizers whose steps are followed by a projection."""
        alive = [h for h in self._hooks if h.handle.id in h.optimizer._optimizer_step_post_hooks]
        return tuple(hook.optimizer for hook in alive)

    @property
    def updates(self) -> dict[str, int]:
        """How many real updates each parameter in the plan has had (waits for the device)."""
        return {name: int(count) for name, count in self._updates.items()}

    def norm_ratios(self) -> dict[str, float]:
        """‖W‖/ρ by name; of a weight with several norms, the ratio furthest from one."""
        ratios = {}
        for name, radius in self._radii.items():
            norm = norms_like(radius, self._parameter(name))
            ratio = (norm / radius.to(norm.device)).flatten()
            ratios[name] = ratio[(ratio - 1).abs().argmax()].item()
        return ratios

    def state_dict(self) -> dict[str, Any]:
        """The original radii, the counts of updates and the settings: tensors, numbers and strings."""
        return {
            "settings": dict(self._settings),
            "actions": {row.name: row.action for row in self.plan.rows},
            "shapes": {name: list(shape) for name, shape in self._shapes.items()},
            "radii": {name: radius.clone() for name, radius in self._radii.items()},
            "updates": self.updates,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over radii and counts; a state from another model or other settings is refused."""
        if found := _differences(self.state_dict(), state):
            raise ValueError("\n  ".join(["this state is of another Projector:", *found]))
        self._radii = {name: state["radii"][name].clone() for name in self._radii}
        self._updates = {name: int(state["updates"][name]) for name in self._updates}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_hooks": [], "_updates": self.updates}


class _AfterStep:
    """The hook on one optimizer, with the names of what it holds."""

    def __init__(self, projector: Projector, optimizer: Any, names: list[str]):
        self.projector, self.optimizer, self.names = projector, optimizer, names
        self.handle: Any = None

    def __call__(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        # A fused optimizer goes through its step even where GradScaler found an inf, and skips on the
        # device. So there the count is a tensor and the choice a mask: nothing waits for the device.
        found_inf = getattr(optimizer, "found_inf", None)
        real = True if found_inf is None else found_inf == 0
        count = self.projector._updates[self.names[0]] + real
        self.projector._updates.update(dict.fromkeys(self.names, count))
        due = (count % self.projector._settings["every"] == 0) & real
        if due is not False:
            self.projector._act_(self.names, when=due if isinstance(due, Tensor) else None)


def _check_options(every: int, decay: float, **choices: str) -> None:
    allowed = {"per": ["tensor", "row"], "output": ["project", "free"], "affine": ["free", "joint", "decay"]}
    for option, value in choices.items():
        if value not in allowed[option]:
            raise ValueError(f"{option}={value!r} is not a choice; take one of {allowed[option]}")
    if type(every) is not int or every < 1:
        raise ValueError(f"every={every!r} counts updates; take a whole number, 1 or more")
    if not 0 < decay <= 1:
        raise ValueError(f"decay={decay!r} is the share of the way to (1, 0); take a number in (0, 1]")


def _readable(model: nn.Module) -> dict[str, nn.Parameter]:
    parameters = dict(model.named_parameters())
    if empty := [name for name, p in parameters.items() if p.is_meta or is_lazy(p)]:
        refuse(empty, "no values to measure (meta device or lazy)", "initialise the model first")
    if flat := [name for name, p in parameters.items() if getattr(p, "_fsdp_flattened", False)]:
        refuse(flat, "a flat shard of FSDP1, whose norm is not that of the weight", "use fully_shard (FSDP2)")
    return parameters


def _names_in(model: nn.Module, exclude: Excluded | Iterable[Excluded]) -> set[str]:
    """The parameters that `exclude` means; tied ones by any of their names."""
    entries = [exclude] if isinstance(exclude, Excluded) else list(exclude)
    modules = dict(model.named_modules(remove_duplicate=False))
    by_name = dict(model.named_parameters(remove_duplicate=False))
    names = {id(p): name for name, p in model.named_parameters()}
    left_out = set()
    for entry in entries:
        thing = by_name.get(entry, modules.get(entry)) if isinstance(entry, str) else entry
        inside = thing.parameters() if isinstance(thing, nn.Module) else [thing]
        found = {names[id(p)] for p in inside if id(p) in names}
        if not found:
            shown, hint = f"this {type(entry).__name__}", "name a parameter or module of it"
            if isinstance(entry, str):
                nearest = get_close_matches(entry, [*by_name, *modules], n=1, cutoff=0.0)[0]
                shown, hint = repr(entry), f"did you mean {nearest!r}?"
            raise ValueError(f"exclude: {shown} matches no parameter of {type(model).__name__}; {hint}")
        left_out |= found
    return left_out


def _check_fit(plan: ProjectionPlan, parameters: Mapping[str, Tensor], output: str) -> None:
    acted = plan.names("project", "joint", "decay")
    if not acted:
        refuse([], "no parameter of the model is left to project", "exclude less")
    if frozen := [name for name in acted if not parameters[name].requires_grad]:
        refuse(frozen, "frozen (requires_grad is False), so there is no update to follow")
    untraced = [row.name for row in plan.rows if row.role is Role.WEIGHT and row.action == "project"]
    if untraced and output == "free":
        way = "call nap.normalize_(model, example_inputs) first, or name the head in exclude=[...] instead"
        refuse(untraced, "never traced, so output='free' cannot tell which is the output layer", way)


def _measured(row: Weight, parameter: Tensor, per: str) -> Tensor:
    if per == "tensor":
        return norms_of(parameter, stacked=row.stacked)
    if row.out_axis < row.stacked:
        refuse([row.name], "the axis of its rows is not known, and per='row' needs it")
    return norms_of(parameter, stacked=row.stacked, out_axis=row.out_axis)


def _check_radii(radii: Mapping[str, Tensor], parameters: Mapping[str, Tensor]) -> None:
    if single := [name for name, r in radii.items() if r.numel() == parameters[name].numel()]:
        refuse(single, "one entry to each norm, so a fixed norm leaves only a sign to learn")
    if bad := [name for name, r in radii.items() if not r.isfinite().all()]:
        refuse(bad, "a norm that is not finite", f"repair its values, or exclude={bad!r}")
    if zero := [name for name, r in radii.items() if not (r > 0).all()]:
        refuse(zero, "a zero norm (of the whole, a row or an expert), so there is no direction to keep")


def _hookable(optimizer: Any) -> Any:
    inner = optimizer
    while not hasattr(inner, "_optimizer_step_post_hooks"):  # such as accelerate's AcceleratedOptimizer
        if not hasattr(inner, "optimizer"):
            kind, way = type(optimizer).__name__, "call projector.project_() after each update instead"
            refuse([], f"{kind} is no torch.optim.Optimizer and has none as .optimizer", way)
        inner = inner.optimizer
    return inner


def _differences(mine: Mapping[str, Any], saved: Any) -> list[str]:
    """One line for each thing that keeps a saved state from fitting."""
    found = []
    for part, here in mine.items():
        there = saved.get(part) if isinstance(saved, Mapping) else None
        if not isinstance(there, Mapping):
            found.append(f"{part}: missing from the state")
            continue
        for key in dict.fromkeys([*here, *there]):
            a, b = here.get(key, "nothing"), there.get(key, "nothing")
            if isinstance(a, Tensor) and isinstance(b, Tensor):
                a, b = list(a.shape), list(b.shape)
            if a != b and not (part == "updates" and isinstance(a, int) and isinstance(b, int)):
                found.append(f"{part}.{key}: {b} in the state, {a} here")
    return found
