"""What kind of thing each torch function does, by name.

The recorder sees functions, methods, operators and their in-place forms; `operation_name` folds the
spellings of one operation into one name, and `KINDS` says how values flow through it.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from typing import Any

import torch


class Kind(Enum):
    SUM = auto()  # linear, or a choice: elements are moved, added, averaged, selected
    SELECT = auto()  # the same, but only a part of the elements comes through
    CHOICE = auto()  # elements are chosen by their size: max, sort, top-k
    PRODUCT = auto()  # elementwise product
    QUOTIENT = auto()
    POWER = auto()  # x**p for some fixed p: the ingredients of a norm
    CONTRACT = auto()  # matmul, convolution, einsum, ...: parametric when one operand is a weight
    LOOKUP = auto()  # rows of a table
    NORM = auto()
    BATCH_NORM = auto()
    ACTIVATION = auto()  # a hidden nonlinearity, wherever it stands
    SQUASH = auto()  # a nonlinearity that may also be the model's output
    HOMOGENEOUS = auto()  # an activation f with f(cx) = c f(x)
    SOFTMAX = auto()
    GATE = auto()  # GLU: half of the features gate the other half
    ATTENTION = auto()
    FRESH = auto()  # the result does not scale with the arguments: shapes, masks, indices, constants


def operation_name(function: Callable[..., Any]) -> str:
    """One name for all spellings: `torch.add`, `Tensor.add_`, `Tensor.__iadd__` are 'add'.

    >>> operation_name(torch.Tensor.__iadd__), operation_name(torch.nn.functional.relu_)
    ('add', 'relu')
    """
    if isinstance(function, torch.jit.ScriptFunction):
        return f"script.{function.name}"
    name = torch.overrides.resolve_name(function) or getattr(function, "__name__", str(function))
    parts = name.split("::")[-1].split(".")
    if parts[-1] in ("__get__", "__set__"):
        return f"get_{parts[-2]}" if parts[-1] == "__get__" else f"set_{parts[-2]}"
    if isinstance(function, torch._ops.OpOverload):  # torch.ops.aten.silu.default
        parts = parts[:-1]
    if isinstance(function, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        library = parts[0]
        if library not in ("aten", "prims"):  # what others call mul may be anything
            return f"{library}.{parts[-1]}"
    last = parts[-1].strip("_")
    return _OPERATORS.get(parts[-1], _ALIASES.get(last, last))


def is_in_place(func: Callable[..., Any], args: Any, kwargs: Any) -> bool:
    """Whether a call writes into its first argument."""
    name = getattr(func, "__name__", "")
    marked = name.endswith("_") and not name.endswith("__")
    return (
        marked
        or name == "__setitem__"
        or name.startswith("__i")
        or bool(kwargs.get("inplace"))
        or any(a is True for a in args[1:])
    )


_OPERATORS = {
    **{f"__i{n}__": n for n in ("add", "sub", "mul", "matmul", "pow", "and", "or", "xor")},
    **{f"__r{n}__": n for n in ("add", "mul", "matmul", "and", "or")},
    "__rsub__": "rsub",
    "__truediv__": "div",
    "__itruediv__": "div",
    "__rtruediv__": "rdiv",
    "__rdiv__": "rdiv",
    "__rpow__": "exp",  # a constant to the power of x
}
_ALIASES = {
    "spmm": "mm",
    "sparse_mm": "mm",
    "dsmm": "mm",
    "hspmm": "mm",
    "hsmm": "mm",
    "saddmm": "addmm",
}  # torch.mm reads as spmm

_TABLE: dict[Kind, str] = {
    Kind.SUM: """
        add sub rsub neg positive sum mean nansum nanmean cumsum cat concat concatenate stack
        hstack vstack dstack column_stack row_stack block_diag cartesian_prod combinations
        where masked_fill masked_scatter view reshape permute transpose t flatten ravel unflatten squeeze
        unsqueeze expand expand_as repeat repeat_interleave tile contiguous clone to type type_as float
        double half bfloat16 cpu cuda detach alias roll flip fliplr flipud rot90 pad constant_pad_nd
        reflection_pad1d reflection_pad2d replication_pad1d replication_pad2d movedim moveaxis swapaxes
        swapdims swapaxis adjoint resolve_conj resolve_neg conj real imag view_as view_as_real
        view_as_complex reshape_as broadcast_to broadcast_tensors unfold fold im2col col2im pixel_shuffle
        pixel_unshuffle channel_shuffle native_channel_shuffle interpolate upsample upsample_nearest
        upsample_bilinear grid_sample affine_grid avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d
        adaptive_avg_pool2d adaptive_avg_pool3d max_unpool1d max_unpool2d max_unpool3d
        dropout dropout1d dropout2d dropout3d alpha_dropout feature_dropout
        feature_alpha_dropout native_dropout requires_grad index_add scatter scatter_add scatter_reduce
        index_put index_copy setitem copy lerp diff trapz get_T get_mT get_H get_mH get_data get_real
        index_fill get_imag as_strided atleast_1d atleast_2d atleast_3d
        meshgrid unsafe_view identity to_dense nan_to_num add_n segment_reduce view_copy rename
        as_subclass pin_memory tril triu diag diagonal diag_embed diagonal_scatter
        slice_scatter select_scatter fft rfft irfft ifft fft2 rfft2 irfft2 ifft2 fftn rfftn
        irfftn ifftn hfft ihfft fftshift ifftshift stft istft trace complex
        set_data pack_padded_sequence pad_packed_sequence
    """,
    Kind.SELECT: """
        getitem chunk split split_with_sizes tensor_split hsplit vsplit dsplit narrow select unbind
        index_select gather take take_along_dim masked_select slice unsafe_chunk unsafe_split
        index
    """,
    Kind.CHOICE: """
        amax amin max min aminmax cummax cummin median nanmedian quantile nanquantile kthvalue mode sort
        msort topk unique unique_consecutive max_pool1d max_pool2d max_pool3d adaptive_max_pool1d
        adaptive_max_pool2d adaptive_max_pool3d max_pool1d_with_indices max_pool2d_with_indices
        max_pool3d_with_indices lp_pool1d lp_pool2d lp_pool3d fractional_max_pool2d fractional_max_pool3d
        fractional_max_pool2d_with_indices fractional_max_pool3d_with_indices
    """,
    Kind.PRODUCT: "mul multiply addcmul",
    Kind.QUOTIENT: "div divide true_divide rdiv addcdiv cosine_similarity reciprocal",
    Kind.POWER: """
        pow square sqrt rsqrt float_power abs absolute norm vector_norm matrix_norm linalg_norm
        linalg_vector_norm var std var_mean std_mean cdist pairwise_distance dist pdist fro hypot
    """,
    Kind.CONTRACT: """
        linear bilinear conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d
        convolution conv_tbc matmul mm bmm mv dot vdot inner outer ger addmm addmv addbmm baddbmm addr
        einsum tensordot kron chain_matmul multi_dot grouped_mm linalg_multi_dot vecdot cross
    """,
    Kind.LOOKUP: "embedding embedding_bag",
    Kind.NORM: """
        layer_norm native_layer_norm rms_norm group_norm native_group_norm instance_norm normalize
    """,
    Kind.BATCH_NORM: "batch_norm native_batch_norm sync_batch_norm",
    Kind.HOMOGENEOUS: "relu leaky_relu rrelu prelu threshold",
    Kind.ACTIVATION: """
        gelu silu swish elu selu celu mish hardswish relu6 softshrink
        hardshrink tanhshrink copysign log1p sin cos sinc tan sinh cosh erf erfc special_erf heaviside round
        floor ceil frac fmod remainder bernoulli i0 multigammaln polygamma digamma prod cumprod polar
        local_response_norm renorm fake_quantize_per_tensor_affine fake_quantize_per_channel_affine
        i0e i1 i1e bessel_j0 bessel_j1 spherical_bessel_j0 airy_ai det matrix_exp matrix_power
    """,
    Kind.SQUASH: """
        sigmoid tanh hardtanh hardsigmoid logsigmoid log_sigmoid softplus softsign expit exp exp2 expm1
        log log2 log10 clamp clip clamp_min clamp_max maximum minimum fmax fmin sign
        sgn logsumexp logcumsumexp logaddexp logaddexp2 logdet atan arctan atan2
        asin acos asinh acosh atanh logit lgamma xlogy arctan2 special_expit
        cross_entropy nll_loss mse_loss l1_loss smooth_l1_loss huber_loss kl_div
        binary_cross_entropy_with_logits binary_cross_entropy log_ndtr special_log_ndtr erfinv normal
        poisson_nll_loss gaussian_nll_loss poisson
    """,
    Kind.SOFTMAX: "softmax log_softmax softmin sparse_softmax gumbel_softmax",
    Kind.GATE: "glu",
    Kind.ATTENTION: "scaled_dot_product_attention",
    Kind.FRESH: """
        zeros ones empty full arange linspace logspace eye tensor as_tensor scalar_tensor zeros_like
        ones_like empty_like full_like rand randn randint randperm rand_like randn_like randint_like
        new_zeros new_ones new_empty new_full new_tensor eq ne lt le gt ge equal isnan isinf isfinite
        isposinf isneginf isreal logical_and logical_or logical_not logical_xor and or not xor invert
        bitwise_and bitwise_or bitwise_not bitwise_xor argmax argmin argsort nonzero nonzero_static
        count_nonzero bincount histc searchsorted bucketize one_hot isin any
        all allclose isclose int long short byte char bool floor_divide floordiv rfloordiv mod rmod
        lshift rshift multinomial from_numpy empty_strided tril_indices triu_indices zero fill uniform
        exponential log_normal geometric random cauchy fill_diagonal size
    """,
}

_KEEPING = """
    add sub rsub neg positive contiguous clone to type type_as float double half bfloat16 cpu cuda detach
    alias dropout dropout1d dropout2d dropout3d alpha_dropout feature_dropout feature_alpha_dropout
    native_dropout identity requires_grad get_data pad constant_pad_nd reflection_pad1d reflection_pad2d
    replication_pad1d replication_pad2d interpolate upsample upsample_nearest upsample_bilinear avg_pool1d
    avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d max_pool1d
    max_pool2d max_pool3d adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d
    max_pool1d_with_indices max_pool2d_with_indices max_pool3d_with_indices
"""

KEEPING_LAYOUT = frozenset(_KEEPING.split())  # each axis stays the axis it was; space may shrink or grow

KINDS: dict[str, Kind] = {name: kind for kind, names in _TABLE.items() for name in names.split()}

POWERS: dict[str, float] = {
    "square": 2.0,
    "sqrt": 0.5,
    "rsqrt": -0.5,
    "var": 2.0,
    "var_mean": 2.0,
}

EPSILON = 1e-2  # constants up to here, added to a variance or a norm, only guard a division
