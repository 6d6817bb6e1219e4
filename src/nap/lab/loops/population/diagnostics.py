"""Diagnostics of a population between epochs, one number for every member."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

import nap
from nap import diagnostics
from nap.lab.loops.population.stacking import Stacked
from nap.lab.loops.population.trainer import Trainer, member_norms
from nap.rates.learning_rate import Update, effective_lr
from nap.weights import WEIGHT_ROLES, Role

Numbers = dict[str, Tensor]  # (K,) each


def activations(body: nn.Module, parameters: Stacked, x: Tensor) -> list[Tensor]:
    """The outputs of a sequential body's nonlinearities, in order; the last are the features."""
    outputs = []
    for name, module in body.named_children():
        parameters_of = {
            key.partition(".")[2]: p for key, p in parameters.items() if key.partition(".")[0] == name
        }
        x = functional_call(module, parameters_of, (x,))
        if isinstance(module, diagnostics.ACTIVATIONS):
            outputs.append(x)
    return outputs


def of_body(parameters: Stacked) -> Stacked:
    """The parameters of a network's body, by their names in it."""
    return {name.removeprefix("body."): p for name, p in parameters.items() if name.startswith("body.")}


@torch.no_grad()
def unit_numbers(trainer: Trainer, x: Tensor) -> Numbers:
    """Unused units and rank of the features that the head reads, on a probe batch (K, B, …)."""

    def features(parameters: Stacked, x: Tensor) -> Tensor:
        return activations(trainer.skeleton.get_submodule("body"), parameters, x)[-1]

    measures: dict[str, Callable[[Tensor], Tensor]] = {
        "dead_units": lambda f: diagnostics.dead_units(f.relu()),  # a leaky unit below zero is linear, too
        "linearized_units": lambda f: diagnostics.linearized_units(f.relu()),
        "dormant_units": diagnostics.dormant_units,
        "feature_rank": diagnostics.feature_rank,
    }
    of = vmap(features)(of_body(trainer.parameters), x)
    return {name: vmap(measure)(of) for name, measure in measures.items()}


@torch.no_grad()
def dead_masks(trainer: Trainer, x: Tensor) -> Tensor:
    """Which units of all hidden layers are zero on all of a probe batch, (K, units); channels are units."""

    def masks(parameters: Stacked, x: Tensor) -> Tensor:
        layers = activations(trainer.skeleton.get_submodule("body"), parameters, x)
        return torch.cat([(layer.transpose(0, 1).flatten(1) <= 0).all(1) for layer in layers])

    return vmap(masks)(of_body(trainer.parameters), x)


def norm_numbers(trainer: Trainer) -> Numbers:
    """Norms of all parameters, and of the matrix-like weights; and the rate that these norms leave."""
    table = nap.weight_groups(trainer.skeleton)
    weights = [trainer.parameters[row.name] for row in table.of(*WEIGHT_ROLES)]
    numbers = {
        "parameter_norm": member_norms(list(trainer.parameters.values())),
        "weight_norm": member_norms(weights),
    }
    followed = [row.name for row in table.of(Role.SCALE_INVARIANT, Role.NORMALISED)]
    if followed:
        update = Update.NORMALISED if trainer.recipe.optimizer == "Adam" else Update.RAW
        rate = torch.tensor(trainer.recipe.learning_rate, dtype=torch.float64)
        rates = [
            effective_lr(rate.to(norms), norms, update=update)
            for norms in (member_norms([trainer.parameters[name]]) for name in followed)
        ]
        numbers["effective_rate"] = torch.stack(rates).log().mean(0).exp()
    return numbers


def scale_drift(trainer: Trainer) -> Numbers:
    """How far the norms' scales and offsets are from (1, 0), root mean square; nothing without norms."""
    rows = nap.weight_groups(trainer.skeleton).of(Role.AFFINE)
    if not rows:
        return {}
    moved = [trainer.parameters[row.name] - trainer.initial[row.name] for row in rows]
    entries = sum(m[0].numel() for m in moved)
    return {"affine_drift": member_norms(moved) / entries**0.5}


def jacobian_norms(trainer: Trainer, x: Tensor) -> Numbers:
    """Mean over a probe batch of ‖∂f(x)/∂x‖."""

    def one(parameters: Stacked, x: Tensor) -> Tensor:
        return diagnostics.jacobian_norm(trainer.skeleton, x, parameters=parameters)

    parameters = {name: p.detach() for name, p in trainer.parameters.items()}
    return {"jacobian_norm": vmap(one, chunk_size=1)(parameters, x)}  # all at once take gigabytes


def gradient_norms(trainer: Trainer, x: Tensor, y: Tensor) -> Tensor:
    """‖∇ loss‖ of each member on a probe batch, without an update."""
    losses, _ = trainer.losses(trainer.parameters, x, y)
    gradients = torch.autograd.grad(losses.sum(), list(trainer.parameters.values()))
    return member_norms(gradients)
