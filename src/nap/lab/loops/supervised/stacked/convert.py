"""A classifier as `vmap` can go over it in few launches: the same function, in operations of our own.

Convolutions of all members are one launch (`training.convolution`), and so is each pass of a BatchNorm with
the ReLU after it, a pooling after that, and the norm in front that `nap.fuse_batch_norms_` found
(`training.rectified`).
"""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nap.kernels import statistics
from nap.lab.loops.supervised.stacked.conv import adopt_
from nap.lab.loops.supervised.stacked.fused_bn_relu import rectified
from nap.norms.fused_batchnorm import TELLS, FusedBatchNorm2d, Known
from nap.norms.norm import CHILD, HOOK, Norm

BATCH_NORMS = nn.BatchNorm2d, FusedBatchNorm2d  # and none that is made of them
# In the __dict__ of a BatchNorm: its norm, whether to pool, and where to leave what averages are to follow.
FRONT, POOL, GATHERED = "nap_lab_front", "nap_lab_pool", "nap_lab_gathered"


def stackable(model: nn.Module) -> nn.Module:
    """A copy of the model, for training, with the same names of parameters and buffers."""
    skeleton = copy.deepcopy(model).train()
    adopt_(skeleton)
    for module in list(skeleton.modules()):
        if type(module).forward is nn.Sequential.forward:
            _rectify_(module)
    for module in skeleton.modules():
        if type(module) in BATCH_NORMS:
            module.__class__ = StackedBatchNorm2d
        elif type(module) is nn.AdaptiveAvgPool2d and module.output_size == 1:
            module.__class__ = StackedMean
    return skeleton


def collect_statistics_(skeleton: nn.Module) -> tuple[dict[str, float], dict[str, tuple[Tensor, Tensor]]]:
    """Have BatchNorms leave what their averages are to follow: to write it takes each of them two launches.

    Their names, each with the share of new values in its averages; and where each pass leaves mean and
    variance of each channel by name. Whoever calls the network empties that, and moves the averages.
    """
    shares: dict[str, float] = {}
    gathered: dict[str, tuple[Tensor, Tensor]] = {}
    for name, norm in skeleton.named_modules():
        if type(norm) is RectifiedBatchNorm2d and norm.momentum and norm.num_batches_tracked is None:
            shares[name] = norm.momentum
            norm.__dict__[GATHERED] = gathered, name
    return shares, gathered


class StackedBatchNorm2d(FusedBatchNorm2d):
    """A BatchNorm made of sums and products, which `vmap` leaves in their places in memory."""

    def _known(self, input: Tensor) -> Known:
        if (known := super()._known(input)) is not None:
            return known
        wide = input.float() if input.dtype == torch.bfloat16 else input
        mean, variance = statistics.moments(wide)
        return Known(wide, mean, variance, (torch.ones_like(mean), torch.zeros_like(mean)))


class RectifiedBatchNorm2d(FusedBatchNorm2d):
    """A BatchNorm, in training, with what stands before and after it."""

    def forward(self, input: Tensor) -> Tensor:
        count = input.numel() // input.shape[1]
        if count == 1:
            raise ValueError(f"a channel of {tuple(input.shape)} has one number, and so no variance")
        front, even = self.__dict__[FRONT], not any(side % 2 for side in input.shape[-2:])
        options = {} if front is None else {"eps_before": front.eps, "centre": front.centre}
        before = None if front is None else front.weight
        if front is not None and before is None:  # BatchNorm would undo a scale; the kernels take one
            before = torch.ones_like(self.weight.detach())
        found = rectified(
            input,
            self.weight,
            self.bias,
            before,
            eps=self.eps,
            pool=self.__dict__[POOL] and even,
            **options,
        )
        if (gathered := self.__dict__[GATHERED]) is None:
            self._follow(found.middle, found.spread)
        else:
            values, name = gathered
            values[name] = found.middle, found.spread
        return F.max_pool2d(found.images, 2) if self.__dict__[POOL] and not even else found.images


class StackedMean(nn.AdaptiveAvgPool2d):
    """The mean of each channel, likewise."""

    def forward(self, input: Tensor) -> Tensor:
        return input.mean((-2, -1), keepdim=True)


def _rectify_(line: nn.Module) -> None:
    """Each BatchNorm with a ReLU right after it takes it over, a pooling after that, and the norm before."""
    names = list(line._modules)
    modules = [module for module in line._modules.values() if module is not None]
    for k, norm in enumerate(modules[:-1]):
        if not _plain(norm) or type(modules[k + 1]) is not nn.ReLU or not _alone(modules[k + 1]):
            continue
        front = _front(modules[k - 1]) if k else None
        if front is not None:
            del modules[k - 1]._forward_hooks[HOOK]
        elif k and TELLS in modules[k - 1].__dict__:
            continue  # a norm of another kind
        pool = k + 2 < len(modules) and _halves(modules[k + 2])
        norm.__class__ = RectifiedBatchNorm2d
        norm.__dict__ |= {FRONT: front, POOL: pool, GATHERED: None}
        for name in names[k + 1 : k + (3 if pool else 2)]:
            line._modules[name] = nn.Identity()


def _plain(module: nn.Module) -> bool:
    if not isinstance(module, nn.BatchNorm2d) or type(module) not in BATCH_NORMS:
        return False
    return module.affine and module.running_mean is not None and _alone(module)


def _alone(module: nn.Module) -> bool:
    """Nothing hangs on it."""
    return not (module._forward_hooks or module._forward_pre_hooks or module._modules)


def _front(layer: nn.Module) -> Norm | None:
    """The norm on a layer's output, where it has an eps of its own, perhaps a scale, and nothing else."""
    norm = getattr(layer, CHILD, None) if TELLS in layer.__dict__ else None
    if norm is None or norm.bias is not None or norm.relative:
        return None
    return norm if list(layer._forward_hooks) == [HOOK] else None


def _halves(module: nn.Module) -> bool:
    if type(module) is not nn.MaxPool2d or module.ceil_mode or module.return_indices or not _alone(module):
        return False
    sides = (module.kernel_size, module.stride, module.padding, module.dilation)
    return sides in ((2, 2, 0, 1), ((2, 2), (2, 2), (0, 0), (1, 1)))
