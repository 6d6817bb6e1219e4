"""Free networks and their projected twins in one population (§4.1, Figure 2).

The members are `1 + len(modes)` groups of the same seeds: first the free networks, then one group of
projected twins for each mode. The rules are those of `nap.TwinPair`, which does the same for one pair.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import Tensor

from nap.lab.loops.population.stacking import Stacked
from nap.methods import Method, Training
from nap.projection.sphere import norms_of, project_tensors_
from nap.rates.twins import TwinMode


class Coupling(Method):
    """Rescales the twins' gradients and updates as their modes say, from the free networks' norms.

    Args:
        coupled: names of the weights that the twins keep on a sphere.
        initial: where all members start, stacked: its norms are the radii.
        modes: of the groups after the first.
    """

    def __init__(self, coupled: Collection[str], initial: Stacked, modes: Sequence[TwinMode]):
        self.modes = list(modes)
        self.seeds = len(next(iter(initial.values()))) // (1 + len(modes))
        self.radii = {name: norms_of(initial[name], stacked=1) for name in coupled}
        self._before: dict[str, Tensor] = {}
        self._rates: dict[str, Tensor] = {}

    def group(self, tensor: Tensor, number: int) -> Tensor:
        """The members of one group; 0 is the free one."""
        return tensor[number * self.seeds : (number + 1) * self.seeds]

    @torch.no_grad()
    def before_step_(self, training: Training) -> None:
        shrink = self._shrinkage(training.parameters)
        together = self._together(training.parameters)
        for name, parameter in training.parameters.items():
            own = shrink.get(name)
            factors = [torch.ones_like(together)]
            for number, mode in enumerate(self.modes, start=1):
                factor = together if mode == "global" else torch.ones_like(together)
                if own is not None and mode in ("exact", "per-layer"):
                    factor = own
                if own is not None and mode == "exact" and parameter.grad is not None:
                    self.group(parameter.grad, number).mul_(_along(own, parameter))
                factors.append(factor)
            self._rates[name] = _along(torch.cat(factors), parameter)
            self._before[name] = parameter.detach().clone()

    @torch.no_grad()
    def after_step_(self, training: Training, inputs: Any = None) -> None:
        for name, parameter in training.parameters.items():
            before = self._before[name]
            parameter.copy_(before + self._rates[name] * (parameter - before))

    @torch.no_grad()
    def project_(self, parameters: Stacked) -> None:
        """The twins back onto their radii; the free networks stay where they are."""
        twins = [parameters[name].detach()[self.seeds :] for name in self.radii]
        project_tensors_(twins, [radius[self.seeds :] for radius in self.radii.values()])

    project_weights_ = project_

    def multipliers(self, parameters: Stacked) -> Tensor:
        """‖ρ‖/‖W‖ over all coupled weights of each free network: what "global" multiplies the rate by."""
        return self._together(parameters)

    def _shrinkage(self, parameters: Any) -> dict[str, Tensor]:
        """c = ρ/‖W‖ of each coupled weight of the free networks, one number a seed."""
        return {name: (rho / norm).flatten() for name, rho, norm in self._norms(parameters)}

    def _together(self, parameters: Any) -> Tensor:
        rows = list(self._norms(parameters))
        radius = torch.stack([rho.flatten() for _, rho, _ in rows]).norm(dim=0)
        return radius / torch.stack([norm.flatten() for _, _, norm in rows]).norm(dim=0)

    def _norms(self, parameters: Any) -> list[tuple[str, Tensor, Tensor]]:
        return [
            (name, self.group(rho, 0), norms_of(self.group(parameters[name], 0), stacked=1))
            for name, rho in self.radii.items()
        ]


def _along(numbers: Tensor, like: Tensor) -> Tensor:
    """One number a member, shaped to multiply a stacked tensor."""
    return numbers.view(-1, *[1] * (like.ndim - 1)).to(like.dtype)
