"""Which modules are activations: the places where a hidden unit can be seen from outside.

Some are exactly zero on a whole range of inputs (ReLU and its kin), so that a unit can be seen to be
dead or linear; the others (GELU, SiLU, tanh, …) are not, and counting zeros says nothing about them.
"""

from torch import nn

ACTIVATIONS: tuple[type[nn.Module], ...] = (
    nn.ReLU,
    nn.ReLU6,
    nn.LeakyReLU,
    nn.PReLU,
    nn.RReLU,
    nn.ELU,
    nn.CELU,
    nn.SELU,
    nn.GELU,
    nn.SiLU,
    nn.Mish,
    nn.GLU,
    nn.Sigmoid,
    nn.LogSigmoid,
    nn.Tanh,
    nn.Hardtanh,
    nn.Hardsigmoid,
    nn.Hardswish,
    nn.Hardshrink,
    nn.Softshrink,
    nn.Tanhshrink,
    nn.Softplus,
    nn.Softsign,
    nn.Threshold,
)

_ZERO_ON_A_RANGE = (nn.ReLU, nn.ReLU6, nn.Hardshrink, nn.Softshrink, nn.Hardsigmoid, nn.Hardswish)


def gives_zeros(module: nn.Module) -> bool | None:
    """Whether an activation is exactly zero on a range of inputs; None for anything else.

    >>> gives_zeros(nn.ReLU()), gives_zeros(nn.GELU()), gives_zeros(nn.Flatten())
    (True, False, None)
    """
    if not isinstance(module, ACTIVATIONS):
        return None
    if isinstance(module, nn.LeakyReLU):
        return module.negative_slope == 0
    if isinstance(module, nn.Threshold):
        return module.value == 0
    if type(module) is nn.Hardtanh:
        return 0 in (module.min_val, module.max_val)
    return isinstance(module, _ZERO_ON_A_RANGE)
