"""The norm of a network's Jacobian (Figure 1): how far outputs move when inputs or weights do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Literal

import torch
from torch import Tensor, nn

from nap.diagnostics.probing import detached, evaluating, outputs_of
from nap.diagnostics.units import or_nan


def jacobian_norm(
    model: nn.Module,
    inputs: Tensor,
    *,
    wrt: Literal["inputs", "parameters"] = "inputs",
    probes: int | None = None,
    parameters: Mapping[str, Tensor] | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Frobenius norm of each example's Jacobian ∂f(x)/∂x (or ∂f(x)/∂θ), averaged over the batch.

    The model runs in eval mode, where examples do not see each other.

    Args:
        wrt: "inputs", or "parameters": the literature on plasticity calls both "the Jacobian norm".
        probes: None is exact, one backward pass per output. A number draws that many random sign
            vectors v per example instead: E‖Jᵀv‖² = ‖J‖_F² (Hutchinson), for large outputs. The
            squared norm is unbiased; its root reads slightly low.
        parameters: used in place of the model's own; `torch.func.vmap` over it measures a population.
        generator: of the probes; the default one, left as it was found, if None.

    >>> layer = nn.Linear(3, 2)
    >>> torch.allclose(jacobian_norm(layer, torch.randn(5, 3)), layer.weight.norm())
    True
    """
    if inputs.ndim < 1 or inputs.shape[0] == 0:
        raise ValueError(f"inputs of shape {tuple(inputs.shape)} hold no example; pass a batch")
    if probes is not None and probes < 1:
        raise ValueError(f"probes is {probes}; draw at least one, or pass None for the exact norm")
    theta = detached(model, parameters)
    with evaluating(model):
        if wrt == "inputs":
            outputs, squared = _wrt_inputs(model, theta, inputs)
        elif wrt == "parameters":
            outputs, squared = _wrt_parameters(model, theta, inputs)
        else:
            raise ValueError(f"wrt is {wrt!r}; choose 'inputs' or 'parameters'")
        if probes is None:
            total = torch.stack([squared(v) for v in _basis(outputs)]).sum(0)
        else:
            draws = [squared(_signs(outputs, generator)) for _ in range(probes)]
            total = torch.stack(draws).mean(0)
    # an output that is not a number has derivatives all the same, of a ReLU for example
    return or_nan(or_nan(total.sqrt().mean(), total), outputs)


Squared = Callable[[Tensor], Tensor]  # ‖Jᵀv‖² of each example, from a v of the outputs' shape


def _wrt_inputs(model: nn.Module, theta: dict[str, Tensor], inputs: Tensor) -> tuple[Tensor, Squared]:
    if not inputs.is_floating_point():
        raise ValueError(
            f"inputs are {inputs.dtype}, which have no derivative; "
            "use wrt='parameters', or a model that starts at the embeddings"
        )
    outputs, pull = torch.func.vjp(lambda x: outputs_of(model, theta, x), inputs.detach())[:2]

    def squared(v: Tensor) -> Tensor:
        (back,) = pull(v)
        return back.reshape(len(back), -1).square().sum(1)

    return outputs, squared


def _wrt_parameters(model: nn.Module, theta: dict[str, Tensor], inputs: Tensor) -> tuple[Tensor, Squared]:
    def one(x: Tensor, v: Tensor) -> Tensor:
        pull = torch.func.vjp(lambda p: outputs_of(model, p, x[None])[0], theta)[1]
        (back,) = pull(v)
        return torch.stack([g.square().sum() for g in back.values()]).sum()

    outputs = outputs_of(model, theta, inputs)
    return outputs, lambda v: torch.func.vmap(one, randomness="same")(inputs, v)


def _basis(outputs: Tensor) -> Iterator[Tensor]:
    width = outputs[0].numel()
    for k in range(width):
        index = torch.arange(width, device=outputs.device) == k
        yield index.to(outputs.dtype).view(outputs.shape[1:]).expand(outputs.shape)


def _signs(outputs: Tensor, generator: torch.Generator | None) -> Tensor:
    device = outputs.device if generator is None else generator.device
    bits = torch.randint(0, 2, outputs.shape, generator=generator, device=device)
    return (2 * bits - 1).to(outputs)
