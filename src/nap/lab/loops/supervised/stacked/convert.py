"""The same classifier in our own operations, so that `vmap` goes over it in few launches.

Convolutions of all members are one launch (`conv`), and so is each pass of a BatchNorm with the norm in front
that `nap.fuse_batch_norms_` fused, the ReLU after it and a pooling after that (`fused_bn_relu`).
"""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nap.kernels import statistics
from nap.lab.loops.supervised.stacked.conv import adopt_
from nap.lab.loops.supervised.stacked.fused_bn_relu import fused_bn_relu
from nap.norms.fused_batchnorm import TELLS, FusedBatchNorm2d, Known
from nap.norms.norm import CHILD, HOOK, Norm

BATCH_NORMS = nn.BatchNorm2d, FusedBatchNorm2d  # and none that is made of them
# In the __dict__ of a BatchNorm: the norm in front, whether to pool, and where its batch statistics go.
FRONT, POOL, STATISTICS = "nap_lab_front", "nap_lab_pool", "nap_lab_statistics"


def stackable(model: nn.Module) -> nn.Module:
    """A copy of the model, for training, with the same names of parameters and buffers."""
    skeleton = copy.deepcopy(model).train()
    adopt_(skeleton)
    for module in list(skeleton.modules()):
        if type(module).forward is nn.Sequential.forward:
            _fuse_(module)
    for module in skeleton.modules():
        if type(module) in BATCH_NORMS:
            module.__class__ = StackedBatchNorm2d
        elif type(module) is nn.AdaptiveAvgPool2d and module.output_size == 1:
            module.__class__ = StackedMean
    return skeleton


def collect_statistics_(skeleton: nn.Module) -> tuple[dict[str, float], dict[str, tuple[Tensor, Tensor]]]:
    """Have BatchNorms collect their batch statistics; updating the running ones takes each two launches.

    Returns the momentum of each such BatchNorm, by name, and the dictionary where each pass leaves its
    channels' mean and variance. The caller empties it and updates the running statistics of all at once.
    """
    momenta: dict[str, float] = {}
    statistics_: dict[str, tuple[Tensor, Tensor]] = {}
    for name, norm in skeleton.named_modules():
        if type(norm) is BatchNormReLU2d and norm.momentum and norm.num_batches_tracked is None:
            momenta[name] = norm.momentum
            norm.__dict__[STATISTICS] = statistics_, name
    return momenta, statistics_


class StackedBatchNorm2d(FusedBatchNorm2d):
    """A BatchNorm made of sums and products, whose results `vmap` does not copy."""

    def _known(self, input: Tensor) -> Known:
        if (known := super()._known(input)) is not None:
            return known
        wide = input.float() if input.dtype == torch.bfloat16 else input
        mean, variance = statistics.moments(wide)
        return Known(wide, mean, variance, (torch.ones_like(mean), torch.zeros_like(mean)))


class BatchNormReLU2d(FusedBatchNorm2d):
    """A BatchNorm in training, with the norm in front, ReLU and perhaps a pooling."""

    def forward(self, input: Tensor) -> Tensor:
        count = input.numel() // input.shape[1]
        if count == 1:
            raise ValueError(f"a channel of {tuple(input.shape)} has one number, and so no variance")
        front, even = self.__dict__[FRONT], not any(side % 2 for side in input.shape[-2:])
        options = {} if front is None else {"eps_before": front.eps, "centre": front.centre}
        before = None if front is None else front.weight
        if front is not None and before is None:  # BatchNorm would undo a scale; the kernels take one
            before = torch.ones_like(self.weight.detach())
        output = fused_bn_relu(
            input,
            self.weight,
            self.bias,
            before,
            eps=self.eps,
            pool=self.__dict__[POOL] and even,
            **options,
        )
        if (collected := self.__dict__[STATISTICS]) is None:
            self._follow(output.mean, output.var)
        else:
            statistics_, name = collected
            statistics_[name] = output.mean, output.var
        return F.max_pool2d(output.images, 2) if self.__dict__[POOL] and not even else output.images


class StackedMean(nn.AdaptiveAvgPool2d):
    """The mean of each channel."""

    def forward(self, input: Tensor) -> Tensor:
        return input.mean((-2, -1), keepdim=True)


def _fuse_(line: nn.Module) -> None:
    """Fuse each BatchNorm that a ReLU follows with it, a pooling after that, and the norm in front."""
    names = list(line._modules)
    modules = [module for module in line._modules.values() if module is not None]
    for k, norm in enumerate(modules[:-1]):
        if not _plain(norm) or type(modules[k + 1]) is not nn.ReLU or not _has_no_hooks(modules[k + 1]):
            continue
        front = _front(modules[k - 1]) if k else None
        if front is not None:
            del modules[k - 1]._forward_hooks[HOOK]
        elif k and TELLS in modules[k - 1].__dict__:
            continue  # a norm of another kind
        pool = k + 2 < len(modules) and _halves(modules[k + 2])
        norm.__class__ = BatchNormReLU2d
        norm.__dict__ |= {FRONT: front, POOL: pool, STATISTICS: None}
        for name in names[k + 1 : k + (3 if pool else 2)]:
            line._modules[name] = nn.Identity()


def _plain(module: nn.Module) -> bool:
    if not isinstance(module, nn.BatchNorm2d) or type(module) not in BATCH_NORMS:
        return False
    return module.affine and module.running_mean is not None and _has_no_hooks(module)


def _has_no_hooks(module: nn.Module) -> bool:
    return not (module._forward_hooks or module._forward_pre_hooks or module._modules)


def _front(layer: nn.Module) -> Norm | None:
    """The norm on a layer's output, where it has an eps of its own, perhaps a scale, and nothing else."""
    norm = getattr(layer, CHILD, None) if TELLS in layer.__dict__ else None
    if norm is None or norm.bias is not None or norm.relative:
        return None
    return norm if list(layer._forward_hooks) == [HOOK] else None


def _halves(module: nn.Module) -> bool:
    if type(module) is not nn.MaxPool2d or module.ceil_mode or module.return_indices:
        return False
    sides = (module.kernel_size, module.stride, module.padding, module.dilation)
    return _has_no_hooks(module) and sides in ((2, 2, 0, 1), ((2, 2), (2, 2), (0, 0), (1, 1)))
