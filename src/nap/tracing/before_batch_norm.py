"""Which results enter nothing but a BatchNorm, feature by feature: a scale in front of it would be undone.

BatchNorm divides each channel by its deviation. So the scale of a norm directly in front of it changes
nothing; its gradient is what rounding leaves, and Adam makes steps of full size out of that. A sum with other
data is another matter: there the scale is the share of the result in the sum.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from nap.tracing.arithmetic import SHAPED_LIKE
from nap.tracing.operations import KEEPING_LAYOUT, Kind
from nap.tracing.values import Carry

if TYPE_CHECKING:
    from nap.tracing.call import Call

_MOVING = frozenset(  # each number stays one, wherever it goes
    """view reshape flatten unflatten transpose permute movedim moveaxis swapaxes swapdims squeeze unsqueeze
    t get_T get_mT view_as reshape_as""".split()  # noqa: SIM905
)
_NEAR = 0.05  # of the distance of two channels' numbers


def note_use(call: Call, kind: Kind | None) -> None:
    """Enters in the record which of what this call was given is used in another way than by a BatchNorm."""
    name = call.name
    if kind is Kind.FRESH and (name.endswith("_like") or name.startswith("new_")):
        return
    fresh = {c for v in call.operands for c in v.carry if not c.batch_norm}
    if kind is Kind.BATCH_NORM:
        fresh = {c for c in fresh if not _enters_apart(call, c)}
    elif _goes_on(call, kind):
        return
    call.rec.flow.beside_batch_norm.update(c.site for c in fresh)


def _goes_on(call: Call, kind: Kind | None) -> bool:
    """Whether the result is what one operand carries: moved, shifted or scaled by constants or parameters."""
    one = call.name in SHAPED_LIKE or sum(v.data for v in call.operands) == 1
    return one and (call.name in KEEPING_LAYOUT | _MOVING or kind in (Kind.PRODUCT, Kind.QUOTIENT))


def _enters_apart(call: Call, carry: Carry) -> bool:
    """Whether a BatchNorm is given this result, and each of its channels one feature of it."""
    use = call.rec.flow.uses[carry.key]
    if {c.key for c in call.operands[0].carry} != {carry.key} or use.output is None:
        return False
    return features_apart(call.tensors[0], 1, use.output, use.axis)


def features_apart(place: Tensor, channels: int, output: Tensor, features: int) -> bool:
    """Whether each index of `place` along `channels` depends on one index of `output` along `features`.

    Channels are numbered, and the numbers are pulled back: each entry of the output then knows which channel
    it is part of, and no channel may be known to two features.
    """
    count = place.shape[channels]
    shape = [1] * place.ndim
    shape[channels] = count
    numbers = torch.arange(count, device=place.device, dtype=torch.float64)
    weights = torch.rand(place.shape, generator=torch.Generator().manual_seed(0)).to(place) + 0.5
    pulled = []
    for each in (weights, weights * (1 + numbers / count).to(place.dtype).view(shape)):
        if not place.requires_grad:
            return False
        (gradient,) = torch.autograd.grad(place, output, each, retain_graph=True, allow_unused=True)
        if gradient is None:
            return False
        pulled.append(gradient.movedim(features, 0).flatten(1).double())
    reached = pulled[0] != 0
    found = torch.where(reached, (pulled[1] / pulled[0] - 1) * count, 0.0)
    channel = found.round().clamp(0, count - 1)
    if not ((found - channel).abs() < _NEAR)[reached].all():
        return False  # an entry that is part of several channels
    feature = torch.arange(len(found), device=place.device)[:, None].expand_as(found)
    pairs = torch.stack([channel[reached].long(), feature[reached]]).unique(dim=1)
    return pairs.shape[1] == len(pairs[0].unique())
