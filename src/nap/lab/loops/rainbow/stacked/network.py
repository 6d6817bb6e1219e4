"""The forward pass of K networks at once, with few and large products: what `RainbowNet` does, K times.

Weights of equal shape lie in one tensor: means and noise of both streams' hidden layers are one product for
all agents, and so are means and noise of each head. Convolutions are products of patches, for a convolution
with a group for each agent has no fast kernels.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nap.lab.loops.rainbow.learner import EPS
from nap.lab.models.rainbow_net import NoisyLinear, RainbowNet, noise_of

Groups = list[tuple[str, ...]]
STREAMS, HEADS = ("advantage", "value"), (("advantage_head",), ("value_head",))


def groups_of(net: RainbowNet) -> Groups:
    """The names of its parameters, those that act together in a group."""
    left = dict.fromkeys(name for name, _ in net.named_parameters())
    groups: Groups = []
    for layers in (STREAMS, *HEADS):
        wanted = [tuple(f"{layer}.{part}.weight" for layer in layers for part in ("mu", "sigma"))]
        rest = ("mu.bias", "sigma.bias", "nap_norm.weight", "nap_norm.bias")
        wanted += [tuple(f"{layer}.{part}" for layer in layers) for part in rest]
        for group in wanted:
            if all(name in left for name in group):
                groups.append(group)
                for name in group:
                    del left[name]
    return [*groups, *((name,) for name in left)]


class StackedNet:
    """K networks that are like `net`, as functions of their parameters by group, each (group, K, *shape)."""

    def __init__(self, net: RainbowNet):
        self.actions, self.atoms, self.fold = net.actions, net.atoms, net.fold
        self.noise_sizes = [layer.noise_size for layer in net.noisy_layers]  # in the order of the children
        self.groups = groups_of(net)
        modules = dict(net.torso.named_children())
        self._convolutions = {f"torso.{n}": m for n, m in modules.items() if isinstance(m, nn.Conv2d)}
        noisy = {name: child for name, child in net.named_children() if isinstance(child, NoisyLinear)}
        self._inputs = {name: layer.mu.in_features for name, layer in noisy.items()}
        known = (nn.Conv2d, NoisyLinear, nn.ReLU, nn.Flatten)
        for name, child in [*net.torso.named_children(), *net.named_children()]:
            if not isinstance(child, known) and child is not net.torso:
                raise ValueError(f"{name} is a {type(child).__name__}, which a stack of networks cannot do")

    def __call__(self, weights: Mapping[tuple[str, ...], Tensor], frames: Tensor, u: Tensor) -> Tensor:
        """Logits (K, B, actions, atoms) of stacks of frames (K, B, …); u (K, B or 1, n) draws the noise."""
        by_first = {group[0]: weight for group, weight in weights.items()}
        noise = dict(zip(self._inputs, noise_of(u).split(self.noise_sizes, -1), strict=True))
        x = self._features(by_first, frames)
        advantage, value = F.relu(self._noisy(by_first, STREAMS, [x, x], noise)).unbind()
        advantage = self._noisy(by_first, HEADS[0], [advantage], noise)[0]
        advantage = advantage.unflatten(-1, (self.actions, self.atoms))
        value = self._noisy(by_first, HEADS[1], [value], noise)[0]
        return value.unsqueeze(2) + advantage - advantage.mean(2, keepdim=True)

    def _features(self, weights: Mapping[str, Tensor], frames: Tensor) -> Tensor:
        x = frames.flatten(2, -3).to(weights["value_head.mu.weight"].dtype) / 255.0
        x = F.pixel_unshuffle(x, self.fold).movedim(2, -1)  # (K, B, H, W, C)
        for name, layer in self._convolutions.items():
            weight = weights[f"{name}.weight"][0]
            x, matrix = patches(x, weight, layer.stride)
            y = torch.bmm(x.flatten(1, 3), matrix.mT).view(*x.shape[:-1], -1)
            x = F.relu(_normalised(y, weights, name, 3))
        return x.movedim(-1, 2).flatten(2)

    def _noisy(
        self,
        weights: Mapping[str, Tensor],
        layers: tuple[str, ...],
        inputs: list[Tensor],
        noise: Mapping[str, Tensor],
    ) -> Tensor:
        """μ(x) + σ(x ⊙ ε_in) ⊙ ε_out of layers of one shape, (layers, K, B, out), with their norms."""
        halves = [noise[layer].tensor_split((self._inputs[layer],), -1) for layer in layers]
        into, out = zip(*halves, strict=True)
        x = torch.stack([v for y, e in zip(inputs, into, strict=True) for v in (y, y * e)])
        first = layers[0]  # by which a group of parameters goes
        weight = weights[f"{first}.mu.weight"].flatten(0, 1)
        y = torch.bmm(x.flatten(0, 1), weight.mT).unflatten(0, (len(layers), 2, -1))
        parts = {"mu": y[:, 0], "sigma": y[:, 1]}
        for part in parts:
            if (bias := weights.get(f"{first}.{part}.bias")) is not None:
                parts[part] = parts[part] + bias.unsqueeze(2)
        return _normalised(parts["mu"] + parts["sigma"] * torch.stack(out), weights, first, 1, grouped=True)


def _normalised(
    y: Tensor, weights: Mapping[str, Tensor], name: str, axes: int, *, grouped: bool = False
) -> Tensor:
    """`y` with a layer's bias, or layer-normalised over its last axes, with scale and offset of features."""

    def of(part: str) -> Tensor | None:
        weight = weights.get(f"{name}.{part}")
        if weight is None:
            return None
        weight = weight if grouped else weight[0]
        return weight.view(*weight.shape[:-1], *[1] * (y.ndim - weight.ndim), weight.shape[-1])

    bias, scale, offset = of("bias"), of("nap_norm.weight"), of("nap_norm.bias")
    if scale is None:
        return y if bias is None else y + bias
    y = F.layer_norm(y, y.shape[-axes:], eps=EPS) * scale
    return y if offset is None else y + offset


def patches(x: Tensor, weight: Tensor, stride: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """What each place of a convolution sees, (K, B, h, w, n), and its kernels as matrices (K, out, n).

    Args:
        x: images (K, B, H, W, C).
        weight: (K, out, C, kh, kw).

    Where the stride divides kernel and image, the places of a step become one place with more channels: a
    kernel of 4×4 with stride 2 is one of 2×2, which takes 4 slices of the image and not 16.
    """
    down, across = stride
    sizes = (weight.shape[3], weight.shape[4], *x.shape[2:4])
    if all(size % step == 0 for size, step in zip(sizes, (down, across, down, across), strict=True)):
        x = x.unflatten(3, (-1, across)).unflatten(2, (-1, down))  # (K, B, H', down, W', across, C)
        x = x.permute(0, 1, 2, 4, 3, 5, 6).flatten(4)
        weight = weight.unflatten(4, (-1, across)).unflatten(3, (-1, down))  # (K, out, C, a, down, b, across)
        weight = weight.permute(0, 1, 4, 6, 2, 3, 5).flatten(2, 4)
        down = across = 1
    kernel = weight.shape[3:]
    tall, wide = ((n - k) // s + 1 for n, k, s in zip(x.shape[2:4], kernel, (down, across), strict=True))
    seen = [
        x[:, :, i : i + down * tall : down, j : j + across * wide : across]
        for i in range(kernel[0])
        for j in range(kernel[1])
    ]
    return torch.cat(seen, -1), weight.permute(0, 1, 3, 4, 2).flatten(2)
