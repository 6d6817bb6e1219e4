"""How many directions the features span (appendix "Non-stationary MNIST").

Units and samples are read as in `nap.diagnostics.units`; NaN or infinity gives NaN. Features of zero
have rank 0 by all three measures.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nap.diagnostics.units import by_units, or_nan, wide


def feature_rank(features: Tensor, threshold: float = 0.01, *, unit_axis: int | None = None) -> Tensor:
    """Number of singular values with σᵢ/σ₁ > threshold, of the (samples, units) matrix, uncentred.

    >>> feature_rank(torch.diag(torch.tensor([1.0, 0.5, 0.001])))
    tensor(2.)
    """
    samples = by_units(features, unit_axis)
    return or_nan(numerical_rank(singular_values(samples), threshold), samples)


def effective_rank(features: Tensor, *, unit_axis: int | None = None) -> Tensor:
    """exp of the entropy of σᵢ/Σσ (Roy & Vetterli, 2007): n for n equal singular values.

    >>> effective_rank(torch.eye(4))
    tensor(4.)
    """
    samples = by_units(features, unit_axis)
    sigma = singular_values(samples)
    total = sigma.sum()
    share = sigma / torch.where(total == 0, 1.0, total)
    entropy = -torch.xlogy(share, share).sum()
    return or_nan(torch.where(total == 0, 0.0, entropy.exp()), samples)


def stable_rank(features: Tensor, *, unit_axis: int | None = None) -> Tensor:
    """‖Φ‖_F²/σ₁²: never above the rank, and little moved by small singular values.

    >>> stable_rank(torch.diag(torch.tensor([2.0, 1.0])))
    tensor(1.2500)
    """
    samples = by_units(features, unit_axis)
    sigma = singular_values(samples)
    largest = sigma.amax()
    ratio = (sigma / torch.where(largest == 0, 1.0, largest)).square().sum()
    return or_nan(ratio, samples)


def singular_values(matrix: Tensor) -> Tensor:
    """Singular values, largest first; entries that are not finite count as zero (LAPACK rejects them).

    On CUDA, float32 ones are roots of the eigenvalues of the Gram matrix in float64: right to 1e-8 of the
    largest, where a float32 decomposition is to 1e-7, in a quarter of its time.
    """
    matrix = torch.nan_to_num(wide(matrix), nan=0.0, posinf=0.0, neginf=0.0)
    if matrix.dtype == torch.float64 or not matrix.is_cuda:
        return torch.linalg.svdvals(matrix)
    tall = matrix.shape[-2] > matrix.shape[-1]
    rows = (matrix.mT if tall else matrix).double()
    squares = torch.linalg.eigvalsh(rows @ rows.mT).flip(-1)
    return squares.clamp(min=0).sqrt().to(matrix.dtype)


def numerical_rank(sigma: Tensor, threshold: float) -> Tensor:
    if not 0 <= threshold < 1:
        raise ValueError(f"threshold is {threshold}, but it is compared with σᵢ/σ₁; choose one in [0, 1)")
    return (sigma > threshold * sigma.amax()).to(sigma.dtype).sum()
