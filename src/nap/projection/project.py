"""Step 2 of NaP: weights go back to the norm they started with, after every update or every k-th.

`Projector` carries the rules of `sphere` and `affine` to a model and its optimizers. What it does to
each parameter is decided in `plan`, what it refuses in `refusals`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from nap.norms.gain import Gain
from nap.norms.norm import Norm
from nap.projection import refusals
from nap.projection.affine import apply_, decay_scale_offset, joint_scale_offset
from nap.projection.lost import Lost, is_undone
from nap.projection.misuse import Unattached, warn_at_attach, warn_of_changes
from nap.projection.names import bare_names, bare_state, counterparts
from nap.projection.noisy import norms_together, project_together_, shared, state_with_noise, with_noise
from nap.projection.plan import (
    Excluded,
    NamePair,
    ProjectionPlan,
    decide,
    measured,
    names_in,
    pairs_of,
)
from nap.projection.policies import Choice, Policies
from nap.projection.resuming import comparable, settings_of, taken_over
from nap.projection.sphere import project_few_, project_tensors_
from nap.projection.updates import AfterStep, by_count, hooks_on, inner_optimizers
from nap.sharded import reshard_, sharded_parts
from nap.weights import weight_groups

ADDED = (Norm, Gain)  # modules of step 1


class Projector:
    """Keeps the weights of `model` at the norms that they have now (step 2 of NaP, Algorithm 1).

    `plan` says what happens to each parameter. The policy, by role (`nap.weight_groups`):

    - weights of every kind are projected, but for those below. For scale-invariant and normalised
      ones this leaves the function as it is; for joint and chain weights it fixes a scale that the
      paper's "for parameter W_l in network" fixes too. Matrices that were not traced or not reached (σ
      of a noisy layer in eval mode) count as weights. Tied weights are projected once. What is all zeros
      is free until it has grown to its fan-in radius, where entries have an RMS of 1/√fan_in.
    - means and noise of a noisy layer, μ(x) + σ(x ⊙ ε) ⊙ ε' in any spelling, share one radius
      (`noise="joint"`): what normalises the layer cancels their common scale alone, so their share may
      move, and noise be learnt away. With `noise="separate"` each has its own, which pins the noise for
      good; with "free" the means are projected and the noise is not.
    - `output`, the layer that makes the logits or values. Projecting it pins their scale: in continual
      learning that is what helps, and so it is the default where no tokens are looked up; there one that
      starts small (RMS entry below 0.14/√fan_in, a quarter of PyTorch's own, or a policy head with gain
      0.01) may grow up to its fan-in radius. In a language model it is free by default, and so is the
      table that it is tied to: logits must grow.
    - `embeddings`, the other look-up tables: free where tokens are looked up, else projected.
    - `branches`, the last matrix of each residual branch, whose result is added to the stream with no
      norm behind it: one that starts below half its fan-in radius (0.02/√(2·blocks), or zero) may grow
      up to there, others are projected.
      Each of the three takes "project", "grow" or "free"; where step 1 put a gain in front of a layer
      (`gains="small"`), its matrix is projected by default.
    - scale and offset of norms are left alone (`affine="free"`, enough for most runs of the paper),
      put at joint norm √d ("joint", exact where only ReLU-like activations follow), or pulled towards
      (1, 0) ("decay"). A norm that feeds the output layer sets the scale of the output: under
      "joint" that scale is pinned.
    - biases are left free: no norm of theirs is to be kept.
    - what is frozen (requires_grad is False) stays as it is, bit by bit, for as long as it is frozen
      and has no gradient. It has its radius, and is projected once an attached optimizer trains it,
      also one that gets it later.

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
    parameter  role    step 2     norm kept at  reason
    0.weight   weight  projected  2             not traced; Algorithm 1 takes every weight
    1.weight   affine  left free                affine='free'
    1.bias     affine  left free                affine='free'
    >>> model(torch.randn(4, 2)).square().sum().backward()
    >>> optimizer.step()
    >>> round(projector.norm_ratios()["0.weight"], 6), projector.updates
    (1.0, {'0.weight': 1})
    """

    _members: Mapping[str | None, int] = {}  # of one that was pickled before there were any

    def __init__(
        self,
        model: nn.Module,
        *,
        every: int = 1,
        per: Literal["tensor", "row"] = "tensor",
        output: Choice | None = None,
        embeddings: Choice | None = None,
        branches: Choice | None = None,
        affine: Literal["free", "joint", "decay"] = "free",
        decay: float = 1e-3,
        noise: Literal["joint", "separate", "free"] = "joint",
        exclude: Excluded | Iterable[Excluded] = (),
    ):
        refusals.check_model(model)
        chosen: dict[str, Any] = {"output": output, "embeddings": embeddings, "branches": branches}
        refusals.check_options(every, decay, per=per, affine=affine, noise=noise, **chosen)
        self._policies = Policies(**chosen)
        self._shards = sharded_parts(model)
        reshard_(self._shards)
        parameters, table = refusals.readable_parameters(model), weight_groups(model)
        left_out = names_in(model, exclude)
        self._table, self._sizes = table, measured(table, parameters, left_out, per)
        ndims = {name: parameter.ndim for name, parameter in parameters.items()}
        plan = decide(table, self._sizes, ndims, left_out, per=per, policies=self._policies, affine=affine)
        plan, self._noise_pairs = with_noise(plan, table, parameters, noise)
        refusals.check_fit(plan, self._policies)
        self._pairs = pairs_of([table[name] for name in plan.names("joint", "decay")])
        self._members = {name: table[name].stacked for pair in self._pairs for name in pair if name}
        if affine == "joint":
            refusals.check_joint(self._pairs, table, parameters)
        if per == "row":
            refusals.check_rows([table[name] for name in plan.names("project", "grow")])
        self._settings: dict[str, Any] = {"every": every, "per": per, "affine": affine}
        self._settings |= settings_of(self._policies)
        self._settings |= {"decay": decay} if affine == "decay" else {}
        self._settings |= {"noise": noise} if any(row.beside for row in table.values()) else {}
        self.options = {**self._settings, **chosen, "noise": noise, "decay": decay}
        self.options["exclude"] = [bare for name, bare in bare_names(table).items() if name in left_out]
        self._all_shapes = {name: parameter.shape for name, parameter in parameters.items()}
        self._all_slots = {
            name: (model.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2]) for name in table
        }
        self._norms = {  # those of step 1: an optimizer made before it does not hold them
            name: slot
            for name, slot in self._all_slots.items()
            if isinstance(slot[0], ADDED) and name not in left_out
        }
        self._updates: dict[str, int | Tensor] = {}
        self._follow_plan_(plan)
        refusals.check_radii(self._radii, parameters)
        self._model = model
        self._hooks: list[AfterStep] = []
        self._lost = Lost()
        warn_of_changes(model)
        trained = next(iter(self._trainable(self.plan.names("project")).items()), None)
        self._unattached = None if trained is None else Unattached(self, *trained)

    def _follow_plan_(self, plan: ProjectionPlan) -> None:
        """Radii, counts and places of all that this plan acts on."""
        kept = {row.name: row.action for row in plan.rows if row.action in ("project", "grow")}
        self._radii = {name: self._sizes.radius(name, action) for name, action in kept.items()}
        self._growing = frozenset(plan.names("grow"))
        self._noisy = [pair for pair in self._noise_pairs if all(kept.get(n) == "project" for n in pair)]
        self._radii |= shared(self._radii, self._noisy)
        self.plan: ProjectionPlan = plan.at(self._radii)
        acted = plan.names("project", "grow", "joint", "decay")
        self._slots = {name: self._all_slots[name] for name in acted}
        self._shapes = {name: self._all_shapes[name] for name in acted}
        self._updates = {name: self._updates.get(name, 0) for name in acted}

    def project_(self, other: nn.Module | None = None) -> None:
        """Project now. It counts as no update, and needs no optimizer.

        With `other`, the same-named weights of that copy instead (an average, a target network; it may
        be frozen), onto the radii of `model`: the mean of points on a sphere lies inside it. Scales
        and offsets under affine="decay" stay as they are there, for an average has been pulled already.

        >>> model = nn.Linear(2, 2)
        >>> projector, average = Projector(model), torch.optim.swa_utils.AveragedModel(model)
        >>> _ = average.module.weight.data.mul_(0.5)
        >>> projector.project_(average)
        >>> torch.allclose(average.module.weight, model.weight)
        True
        """
        if other is None:
            self._project_own_(self._trainable(self._slots))
            self._is_used()
            for hook in self._hooks:
                hook.moves_are_known()
        else:
            reshard_(sharded_parts(other))
            shapes = {name: self._shapes[name] for name in self.plan.names("project", "grow", "joint")}
            self._act_(counterparts(other, bare_names(self.plan.names()), shapes))

    def _is_used(self) -> None:
        """It follows an optimizer or is called by hand: no need to watch for a model trained without it."""
        if self._unattached is not None:
            self._unattached.stop()
            self._unattached = None

    def _project_own_(self, held: Mapping[Any, Tensor], when: Tensor | None = None) -> None:
        self._radii |= self._act_(held, when)

    def _trainable(self, names: Iterable[str], *, after_step: bool = False) -> dict[str, Tensor]:
        # by its gradient, not by requires_grad, an optimizer decides whether a parameter moves
        reshard_(self._shards)
        held = {name: self._parameter(name) for name in names}
        frozen = {
            name
            for name, parameter in held.items()
            if not parameter.requires_grad and not (after_step and parameter.grad is not None)
        }
        if frozen:  # a pair moves as one
            frozen |= {name for pair in self._together if frozen.intersection(pair) for name in pair if name}
        return {name: held[name] for name in held if name not in frozen} if frozen else held

    @torch.no_grad()
    def _act_(self, held: Mapping[Any, Tensor], when: Tensor | None = None) -> dict[str, Tensor]:
        """Write into these, and return their radii as they lie on the device."""
        radii = {name: self._radii[name] for name in held if name in self._radii}
        radii |= {n: r.to(held[n].device) for n, r in radii.items() if r.device != held[n].device}
        pairs = [pair for pair in self._noisy if radii.keys() >= {*pair}]
        together = {name for pair in pairs for name in pair}
        for ceiling in (False, True) if self._growing else (False,):
            alone = [n for n in radii if n not in together and (n in self._growing) is ceiling]
            weights, limits = {name: held[name] for name in alone}, [radii[name] for name in alone]
            tensors = list(weights.values())
            if project_few_(tensors, limits, when, ceiling=ceiling) is not None:
                continue  # none of them is lost
            norms = project_tensors_(tensors, limits, when=when, ceiling=ceiling)
            if not (ceiling or is_undone(when)) and self._lost.is_due(norms):
                self._lost.warn(weights, radii)
        if pairs:
            groups = [(held[mean], held[noise]) for mean, noise in pairs]
            project_together_(groups, [radii[mean] for mean, _ in pairs], when=when)
        stacks = {pair: self._members.get(pair[0] or pair[1], 0) for pair in self._pairs}
        for members in sorted(set(stacks.values())):
            rule: Any = partial(joint_scale_offset, stacked=1 + members)
            if self._settings["affine"] == "decay":
                rule = partial(decay_scale_offset, decay=self._settings["decay"])
            alike = [pair for pair, count in stacks.items() if count == members]
            apply_(rule, [(held.get(s), held.get(o)) for s, o in alike if s in held or o in held], when=when)
        return radii

    @property
    def _together(self) -> list[NamePair]:
        """The parameters that move as one: scale and offset under the joint rule, means and their noise."""
        return [*(self._pairs if self._settings["affine"] == "joint" else []), *self._noisy]

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
        several optimizers share the work, hand them over in one call: together they must hold every
        trainable weight of the plan, and every trainable norm that step 1 put in. Parameters that are
        added to an optimizer later (`add_param_group`) are followed from then on. Under `torch.compile`
        of a step the projection runs after it, not compiled. An optimizer that moves weights by other
        methods than `step` (SAM's first_step and second_step) is noticed after a few backward passes,
        with a warning: attach the optimizer inside of it, or call `project_()` after each update.
        """
        new = hooks_on(optimizers, self._names_in, self._follow_)
        trainable = {id(parameter): name for name, parameter in self._trainable(self._slots).items()}
        refusals.check_held([hook.optimizer for hook in [*self._hooks, *new]], trainable, self._norm_ids())
        for hook in new:
            hook.attach(self._parameter)
        self._hooks += new
        self._is_used()
        projected = self._trainable(self.plan.names("project"))
        warn_at_attach(self._model, projected, inner_optimizers(*(hook.optimizer for hook in new)))
        return self

    def param_groups(self, *, weight_decay: float, **options: Any) -> list[dict[str, Any]]:
        """Groups for an optimizer with decay on the matrices that are not projected, and on nothing else.

        On a projected weight, decay would shrink what is put back at once; on scales it would undo norms.

        Args:
            options: of both groups, such as `lr`.

        >>> projector = Projector(nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2)))
        >>> [group["weight_decay"] for group in projector.param_groups(weight_decay=0.1)]
        [0.0]
        """
        return self.plan.param_groups(self._model.named_parameters(), weight_decay, options)

    def _names_in(self, optimizer: Any) -> list[str]:
        """The parameters of the plan that this optimizer holds, frozen ones too."""
        refusals.check_unchanged(self._model, self.plan)
        reshard_(self._shards)
        names = {id(self._parameter(name)): name for name in self._slots}
        refusals.check_one(optimizer, self._model, names, self._together)
        held = refusals.held_by(optimizer)
        return [name for key, name in names.items() if key in held]

    def _norm_ids(self) -> dict[int, str]:
        """The trainable norms that step 1 put in."""
        held = {name: module._parameters[leaf] for name, (module, leaf) in self._norms.items()}
        return {id(p): name for name, p in held.items() if p is not None and p.requires_grad}

    def _follow_(self, names: list[str], real: bool | Tensor) -> None:
        # `real` may be on the device: then the count is a tensor and the choice a mask
        held = self._trainable(names, after_step=True)
        for alike in by_count(held, self._updates):  # one group, unless optimizers share parameters
            count = self._updates[alike[0]] + real
            self._updates.update(dict.fromkeys(alike, count))
            due = (count % self._settings["every"] == 0) & real
            if due is not False:
                group = {name: held[name] for name in alike}
                self._project_own_(group, when=due if isinstance(due, Tensor) else None)

    def detach(self) -> None:
        """Take the hooks off every optimizer; radii and counts stay."""
        for hook in self._hooks:
            hook.detach()
        self._hooks = []

    @property
    def attached(self) -> tuple[Optimizer, ...]:
        """The optimizers whose steps are followed by a projection."""
        return tuple(hook.optimizer for hook in self._hooks if hook.alive)

    @property
    def updates(self) -> dict[str, int]:
        """How many real updates each parameter in the plan has had (waits for the device)."""
        return {name: int(count) for name, count in self._updates.items()}

    def norm_ratios(self) -> dict[str, float]:
        """‖W‖/ρ by name, below one for what still grows; of several norms, the ratio furthest from one."""
        ratios = {}
        reshard_(self._shards)
        shares = {name: pair for pair in self._noisy for name in pair}
        for name, radius in self._radii.items():
            norm = norms_together(radius, map(self._parameter, shares.get(name, (name,))))
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
        """Take over radii and counts; a state from another model or other settings is refused.

        What the policies left to the default (project, grow or free) is taken over too: a run goes on as it
        was begun. Names may differ by what wrappers add: a compiled or parallel model takes the state of a
        plain one.
        """
        bare, saved = bare_names(self.plan.names()), bare_state(state)
        pairs = [(bare[mean], bare[noise]) for mean, noise in self._noise_pairs]
        saved = state_with_noise(saved, self._settings, pairs)
        before, updates = self.plan, self._updates
        known = self._sizes.norms
        self._follow_plan_(taken_over(before, self._table, self._policies, bare, saved, known))
        try:
            refusals.check_state(*comparable(bare_state(self.state_dict()), saved, self._policies))
            refusals.check_saved_radii(saved["radii"], saved["updates"])
        except ValueError:
            self._updates = updates
            self._follow_plan_(before)
            raise
        self._radii = {name: saved["radii"][bare[name]].clone() for name in self._radii}
        self._updates = {name: int(saved["updates"][bare[name]]) for name in self._updates}
        self.plan = self.plan.at(self._radii)
        for hook in self._hooks:
            hook.look_again()

    def __repr__(self) -> str:
        kinds = ", ".join(type(optimizer).__name__ for optimizer in self.attached)
        attached = f"attached to {kinds}" if kinds else "not attached"
        return f"Projector of {type(self._model).__name__}: {self.plan.summary()}; {attached}"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_hooks": [], "_unattached": None, "_updates": self.updates}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update({"_lost": Lost(), "_unattached": None, **state})  # older ones have none
