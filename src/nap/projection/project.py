"""The `Projector`: step 2 of NaP for a model and its optimizers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from nap.norms.gain import Gain
from nap.norms.norm import Norm
from nap.projection import refusals
from nap.projection.apply import DirectionCheck, Tensors, affine_all_, lengths_of, ratios_of
from nap.projection.hooks import AfterStep, Followed, StepStart, by_count, hooks_on, inner_optimizers
from nap.projection.limits import Limits, WeightsBefore
from nap.projection.misuse import Unattached, made_for, used_on, warn_at_attach, warn_of_changes
from nap.projection.names import bare_names, counterparts
from nap.projection.noisy import shared, with_noise
from nap.projection.plan import Excluded, NamePair, ProjectionPlan, decide, measured, names_in, pairs_of
from nap.projection.policies import Choice, Policies
from nap.projection.small import SmallWeights
from nap.projection.state import bare_state, check_state, settings_of, state_with_noise, with_saved_actions
from nap.projection.steps import Rate
from nap.projection.watch import ModelWatch
from nap.sharded import reshard_, sharded_parts
from nap.weights import weight_groups


class Projector:
    """Keeps each weight of `model` at the norm that it has now (step 2 of NaP, Algorithm 1).

    `print(projector.plan)` shows what happens to each parameter and why. By role (`nap.weight_groups`):

    - Weights are projected, tied ones once. This leaves the function as it is for scale-invariant and
      normalised ones, and fixes a scale for the others, as the paper does. A weight that is all zeros is
      free until it has grown to its fan-in radius, where entries have an RMS of 1/√fan_in.
    - `output`, the layer that makes logits or values: free in a language model, with the table that it is
      tied to, since logits must grow. Elsewhere projected, which is what helps in continual learning; one
      that starts small (entries below 0.14/√fan_in, such as a policy head with gain 0.01) may grow.
    - `embeddings`, the other look-up tables: free where tokens are looked up, else projected.
    - `branches`, the last matrix of each residual branch that no norm follows: one that starts below half
      its fan-in radius (0.02/√(2·blocks), or zero) may grow, others are projected.
    - Scales and offsets of norms are left alone (`affine="free"`), kept at joint norm √d ("joint", exact
      where only ReLU-like activations follow) or pulled towards (1, 0) ("decay").
    - Means and noise of a noisy layer share one radius (`noise="joint"`), so that noise can be unlearnt. With
      "separate" each has its own; with "free" the noise is not projected.
    - Biases are free. Frozen parameters stay as they are until an attached optimizer trains them.

    Args:
        every: project after every so many real updates.
        per: "tensor": one norm a weight, the symmetry of LayerNorm; "row": one for each output feature,
            the symmetry of BatchNorm. Stacked experts have a norm each either way.
        output: "project", "grow" (up to the fan-in radius), "free"; None: as above, or "project" with a gain.
        embeddings: the same for look-up tables.
        branches: the same for the last matrix of each residual branch.
        decay: 1 − α in the paper's U_decay; 1e-3 halves the distance from (1, 0) in some 700 projections.
        exclude: names of parameters or modules, or these themselves; left free.
        update: "free": the optimizer's step as it is. "relative": each weight that has a radius moves by
            lr·ρ in the direction of that step, W ← ρ·norm(W + lr·ρ·norm(u)), so that the learning rate is
            the relative step, whatever the optimizer. Copies these weights while a step lasts.
        brake: the share of a norm's move away from its radius that is taken back after each step: 1 projects,
            less lets norms grow more slowly, 0 does nothing. Moves towards the radius are free.

    A copied or unpickled one goes with its own copy of the model and is attached to no optimizer.

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
    _limits = Limits()

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
        update: Literal["free", "relative"] = "free",
        brake: float = 1.0,
    ):
        refusals.check_model(model)
        chosen: dict[str, Any] = {"output": output, "embeddings": embeddings, "branches": branches}
        refusals.check_options(every, decay, per=per, affine=affine, noise=noise, **chosen)
        self._limits = Limits(update, brake)
        self._limits.check_every(every)
        self._policies = Policies(**chosen)
        self._shards = sharded_parts(model)
        reshard_(self._shards)
        parameters, table = refusals.readable_parameters(model), weight_groups(model)
        left_out = names_in(model, exclude)
        self._table, self._sizes = table, measured(table, parameters, left_out, per)
        ndims = {name: parameter.ndim for name, parameter in parameters.items()}
        plan = decide(table, self._sizes, ndims, left_out, per=per, policies=self._policies, affine=affine)
        plan, self._noise_pairs = with_noise(plan, table, parameters, noise)
        refusals.check_fit(plan, self._policies, excluded=bool(left_out))
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
        self._settings |= self._limits.chosen()
        self.options = {**self._settings, **chosen, "noise": noise, "decay": decay}
        self.options |= {"update": update, "brake": brake}
        self.options["exclude"] = [bare for name, bare in bare_names(table).items() if name in left_out]
        self._all_shapes = {name: parameter.shape for name, parameter in parameters.items()}
        self._all_slots = {
            name: (model.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2]) for name in table
        }
        self._norms = {  # inserted by step 1: an optimizer that was built before it does not hold them
            name: slot
            for name, slot in self._all_slots.items()
            if isinstance(slot[0], Norm | Gain) and name not in left_out
        }
        self._updates: dict[str, int | Tensor] = {}
        self._follow_plan_(plan)
        refusals.check_radii(self._radii, parameters)
        self._model = model
        self._hooks: list[AfterStep] = []
        self._direction = DirectionCheck()
        warn_of_changes(model)
        made_for(model)
        trained = next(iter(self._trainable(self.plan.names("project")).items()), None)
        self._unattached = None if trained is None else Unattached(self, *trained)

    def _follow_plan_(self, plan: ProjectionPlan) -> None:
        """Set the plan, and the radii, counts and slots of the parameters that it acts on."""
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
        self._all_small = self._small(acted)

    def project_(self, other: nn.Module | None = None) -> None:
        """Project now. It counts as no update, and needs no optimizer (to limit updates it needs one).

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
            self._limits.check_by_hand(attached=bool(self._hooks))
            if self._all_small is None or not self._all_small.project_():
                self._radii |= self._act_(self._trainable(self._slots))
            self._is_used()
            for hook in self._hooks:
                hook.projected_by_hand()
        else:
            reshard_(sharded_parts(other))
            shapes = {name: self._shapes[name] for name in self.plan.names("project", "grow", "joint")}
            self._act_(counterparts(other, bare_names(self.plan.names()), shapes))

    def _is_used(self) -> None:
        """Attached, or called by hand: no need to watch for a model that trains without it."""
        used_on(self._model)
        if self._unattached is not None:
            self._unattached.stop()
            self._unattached = None

    def _trainable(self, names: Iterable[str], *, after_step: bool = False) -> dict[str, Tensor]:
        # by its gradient, not by requires_grad, an optimizer decides whether a parameter moves
        reshard_(self._shards)
        weights = {name: self._parameter(name) for name in names}
        frozen = {
            name
            for name, parameter in weights.items()
            if not parameter.requires_grad and not (after_step and parameter.grad is not None)
        }
        if frozen:  # a pair moves as one
            frozen |= {name for pair in self._together if frozen.intersection(pair) for name in pair if name}
        return {name: weights[name] for name in weights if name not in frozen} if frozen else weights

    @torch.no_grad()
    def _act_(
        self, weights: Tensors, when: Tensor | None = None, start: WeightsBefore | None = None
    ) -> dict[str, Tensor]:
        """Project these weights; return their radii on the weights' device."""
        radii = self._radii_of(weights)
        pairs = [pair for pair in self._noisy if all(name in radii for name in pair)]
        self._limits.act_(weights, radii, pairs, self._growing, when, start, self._direction)
        affine_all_(weights, self._pairs, self._members, self._settings, when)
        return radii

    def _radii_of(self, weights: Tensors) -> dict[str, Tensor]:
        radii = {name: self._radii[name] for name in weights if name in self._radii}
        return {n: r if r.device == (to := weights[n].device) else r.to(to) for n, r in radii.items()}

    @property
    def _together(self) -> list[NamePair]:
        """Pairs that share a norm: scale and offset under the joint rule, means and noise."""
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

        Hand over several optimizers in one call: together they must hold every trainable weight of the
        plan and every norm that step 1 put in. Parameters that are added later (`add_param_group`) are
        followed too. A step that a `GradScaler` skips is no update. A compiled step is projected after it,
        not compiled. An optimizer that moves weights by other methods than `step` (SAM) is noticed after a
        few backward passes: attach the optimizer inside of it, or call `project_()` after each update.
        """
        limits = self._limits
        before = (
            StepStart(self._before_, limits.check_optimizer, self._relative_radii) if limits.any else None
        )
        new = hooks_on(optimizers, self._find, self._follow_, before)
        trainable = {id(parameter): name for name, parameter in self._trainable(self._slots).items()}
        refusals.check_held([hook.optimizer for hook in [*self._hooks, *new]], trainable, self._norm_ids())
        for hook in new:
            hook.attach(self._parameter)
        self._hooks += new
        self._is_used()
        projected = self._trainable(self.plan.names("project"))
        inner = inner_optimizers(*(hook.optimizer for hook in new))
        warn_at_attach(self._model, projected, inner, relative=limits.relative, braked=limits.brake < 1)
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

    def _find(self, optimizer: Any) -> Followed:
        """The parameters of the plan that this optimizer holds, frozen ones too."""
        refusals.check_unchanged(self._model, self.plan, self._slots)
        reshard_(self._shards)
        names = {id(self._parameter(name)): name for name in self._slots}
        refusals.check_one(optimizer, self._model, names, self._together)
        ids = refusals.held_by(optimizer)
        followed = [name for key, name in names.items() if key in ids]
        small = self._small(followed) if self._settings["every"] == 1 else None
        return Followed(followed, ModelWatch(self._model, optimizer), small)

    def _small(self, names: Iterable[str]) -> SmallWeights | None:
        if self._limits.any or self._noisy:
            return None
        return SmallWeights.of({name: self._slots[name] for name in names}, self._radii, self._growing)

    def _norm_ids(self) -> dict[int, str]:
        """The trainable parameters of the norms that step 1 inserted, by id."""
        norms = {name: module._parameters[leaf] for name, (module, leaf) in self._norms.items()}
        return {id(p): name for name, p in norms.items() if p is not None and p.requires_grad}

    def _before_(self, names: list[str], rates: Mapping[int, Rate]) -> WeightsBefore:
        weights = self._trainable([name for name in names if name in self._radii], after_step=True)
        by_name = {name: rates[id(self._parameter(name))] for name in weights}
        return self._limits.before(weights, self._radii_of(weights), by_name, self._noisy)

    def _relative_radii(self) -> dict[int, Tensor]:
        radii = self._radii if self._limits.relative else {}
        steps = lengths_of(self._parameter, radii, self._noisy)
        return {id(self._parameter(name)): length for name, length in steps.items()}

    def _follow_(self, followed: Followed, real: bool | Tensor, start: WeightsBefore | None) -> bool:
        if followed.small is not None and real is True and followed.small.project_():
            for name in followed.names:
                self._updates[name] = self._updates[name] + 1
            return True
        weights = self._trainable(followed.names, after_step=True)
        for alike in by_count(weights, self._updates):  # one group, unless optimizers share parameters
            count = self._updates[alike[0]] + real  # tensors, where `real` is on the device
            self._updates.update(dict.fromkeys(alike, count))
            due = (count % self._settings["every"] == 0) & real
            if due is not False:
                group = {name: weights[name] for name in alike}
                self._radii |= self._act_(group, due if isinstance(due, Tensor) else None, start)
        return False

    def detach(self) -> None:
        """Remove the hooks from every optimizer; radii and counts stay."""
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
        reshard_(self._shards)
        return ratios_of(self._parameter, self._radii, self._noisy)

    def state_dict(self) -> dict[str, Any]:
        """The original radii, the counts of updates and the settings: tensors, numbers and strings."""
        for hook in self._hooks:
            hook.check_model()
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
        self._limits.check_state(saved)
        pairs = [(bare[mean], bare[noise]) for mean, noise in self._noise_pairs]
        saved = state_with_noise(saved, self._settings, pairs)
        before, updates = self.plan, self._updates
        known = self._sizes.norms
        self._follow_plan_(with_saved_actions(before, self._table, self._policies, bare, saved, known))
        try:
            check_state(bare_state(self.state_dict()), saved, self._policies)
        except ValueError:
            self._updates = updates
            self._follow_plan_(before)
            raise
        self._radii = {name: saved["radii"][bare[name]].clone() for name in self._radii}
        self._updates = {name: int(saved["updates"][bare[name]]) for name in self._updates}
        self.plan = self.plan.at(self._radii)
        self._all_small = self._small(self._slots)
        for hook in self._hooks:
            hook.look_again()

    def __repr__(self) -> str:
        kinds = ", ".join(type(optimizer).__name__ for optimizer in self.attached)
        attached = f"attached to {kinds}" if kinds else "not attached"
        done = f"{self.plan.summary()}{self._limits}"
        return f"Projector of {type(self._model).__name__}: {done}; {attached}"

    def __getstate__(self) -> dict[str, Any]:
        without = {"_hooks": list[AfterStep](), "_all_small": None, "_unattached": None}
        return {**self.__dict__, **without, "_updates": self.updates}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(
            {"_direction": DirectionCheck(), "_all_small": None, "_unattached": None, **state}
        )  # older ones have none
