"""The empirical neural tangent kernel: which examples' outputs move together under a gradient step."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from nap.diagnostics.probing import detached, evaluating, outputs_of
from nap.diagnostics.rank import numerical_rank, singular_values
from nap.diagnostics.units import or_nan


def ntk(
    model: nn.Module,
    inputs: Tensor,
    *,
    full: bool = False,
    parameters: Mapping[str, Tensor] | None = None,
) -> Tensor:
    """Θ[i, j] = Σₖ ⟨∂fₖ(xᵢ)/∂θ, ∂fₖ(xⱼ)/∂θ⟩, of shape (B, B): the trace over the outputs k.

    The model runs in eval mode, one example at a time (`torch.func.vmap`), so that each row is the
    gradient of one example; buffers stay as they are. It takes memory for B gradients at a time.

    Args:
        full: keep the outputs apart: shape (B·K, B·K), output index fastest; memory for B·K gradients.
        parameters: used in place of the model's own; `torch.func.vmap` over it measures a population.

    >>> ntk(nn.Linear(2, 1, bias=False), torch.tensor([[1.0, 0.0], [1.0, 1.0]]))
    tensor([[1., 1.],
            [1., 2.]])
    """
    if inputs.ndim < 1 or inputs.shape[0] == 0:
        raise ValueError(f"inputs of shape {tuple(inputs.shape)} hold no example; pass a batch")
    theta = detached(model, parameters)

    def output(p: dict[str, Tensor], x: Tensor, k: int) -> Tensor:
        return outputs_of(model, p, x[None])[0].flatten()[k]

    def gradients(k: int) -> Tensor:
        rows = torch.func.vmap(torch.func.grad(output), in_dims=(None, 0, None), randomness="same")
        return torch.cat([g.reshape(len(inputs), -1) for g in rows(theta, inputs, k).values()], dim=1)

    with evaluating(model), torch.no_grad():
        width = outputs_of(model, theta, inputs[:1])[0].numel()
        if full:
            rows = torch.stack([gradients(k) for k in range(width)], dim=1).flatten(0, 1)
            return rows @ rows.T
        kernel = torch.zeros((), device=inputs.device)
        for k in range(width):
            rows = gradients(k)
            kernel = kernel + rows @ rows.T
        return kernel


def ntk_rank(
    model: nn.Module,
    inputs: Tensor,
    *,
    threshold: float = 0.01,
    full: bool = False,
    parameters: Mapping[str, Tensor] | None = None,
) -> Tensor:
    """Numerical rank of `ntk`: the number of its eigenvalues with λᵢ/λ₁ > threshold.

    The same rule as `feature_rank`, applied to the kernel itself. The kernel's eigenvalues are squared
    singular values of the Jacobian, so 0.01 here means 0.1 there.

    >>> ntk_rank(nn.Linear(2, 1), torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0]]))
    tensor(3.)
    """
    kernel = ntk(model, inputs, full=full, parameters=parameters)
    return or_nan(numerical_rank(singular_values(kernel), threshold), kernel)
