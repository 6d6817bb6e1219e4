"""Which matrices of a model enter a product, seen below autograd: a second opinion on the record."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_PRODUCTS = frozenset(
    "mm bmm mv addmm addmv baddbmm addbmm convolution _grouped_mm linear conv1d conv2d conv3d".split()  # noqa: SIM905
)
_ADDEND_FIRST = ("addmm", "addmv", "baddbmm", "addbmm")


class Products(TorchDispatchMode):
    """Notes the matrices of a model that enter a product with anything that is no parameter."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.names: set[str] = set()
        self._matrices = {_memory(p): n for n, p in model.named_parameters() if p.ndim > 1}
        self._parameters = {_memory(p) for p in model.parameters()}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket.__name__ in _PRODUCTS:
            named = args[1:] if func.overloadpacket.__name__ in _ADDEND_FIRST else args
            factors = [x for x in tree_leaves(named) if isinstance(x, Tensor) and x.ndim > 0]
            found = {_memory(x) for x in factors}
            if any(memory not in self._parameters for memory in found):
                self.names |= {name for memory, name in self._matrices.items() if memory in found}
        return func(*args, **(kwargs or {}))


def _memory(x: Tensor) -> int:
    return x.untyped_storage()._cdata
