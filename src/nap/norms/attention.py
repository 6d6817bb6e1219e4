"""Attention with normalised queries and keys, inside torch's own fused module.

`nn.MultiheadAttention` keeps its three projections in one tensor and calls no submodule between them
and the softmax, so no hook can reach its queries and keys. A static subclass can: the object, its
parameters and their state-dict keys stay, `isinstance` holds, and copies and pickles work.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nap.norms.norm import HOOK, Eps, Norm


def normalize_attention_(mha: nn.MultiheadAttention, *, scale: bool = True, eps: Eps = "relative") -> None:
    """Queries and keys of `mha` get a per-head RMSNorm, in place (the paper's attention appendix).

    Adds the children `q_norm` and `k_norm`, shared by the heads: no centring, no offset, never
    across tokens. The query and key parts of `in_proj_bias` are set to zero and no longer used: their
    gradient is zero, so they stay there. The value part works as before.

    >>> mha = nn.MultiheadAttention(8, 2, batch_first=True)
    >>> normalize_attention_(mha)
    >>> type(mha).__name__, tuple(mha.q_norm.weight.shape)
    ('NormalizedMultiheadAttention', (4,))
    """
    _refuse_unless_plain(mha)
    if mha.in_proj_bias is not None:
        with torch.no_grad():
            mha.in_proj_bias[: 2 * mha.embed_dim].zero_()
    like = mha.out_proj.weight
    for name in ("q_norm", "k_norm"):
        norm = Norm(
            mha.head_dim,
            centre=False,
            scale=scale,
            offset=False,
            eps=eps,
            device=like.device,
            dtype=like.dtype,
        )
        mha.add_module(name, norm.train(mha.training))
    mha.__class__ = NormalizedMultiheadAttention
    mha._forward_pre_hooks[HOOK] = _no_fused_encoder_layer


class NormalizedMultiheadAttention(nn.MultiheadAttention):
    """`nn.MultiheadAttention` with softmax(norm(W_q x)·norm(W_k x)/√d); made by `normalize_attention_`.

    Takes and returns what `nn.MultiheadAttention` does. W_q, W_k and `bias_k` are scale-invariant.
    The causal hint is used only where it says the same as `attn_mask`: as many queries as keys and
    no extra key from `add_bias_kv` or `add_zero_attn` (torch masks that key by mistake).
    """

    q_norm: Norm
    k_norm: Norm

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        _check_inputs(query, key, value)
        if is_causal and attn_mask is None:
            raise ValueError("is_causal is a hint about attn_mask, which is None: pass the causal mask too")
        batched = query.dim() == 3
        if not batched:
            query, key, value = query.unsqueeze(0), key.unsqueeze(0), value.unsqueeze(0)
            key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
        elif not self.batch_first:
            query, key, value = query.transpose(0, 1), key.transpose(0, 1), value.transpose(0, 1)
        _check_shape("key", key, (len(query), key.shape[1], self.kdim))
        _check_shape("value", value, (*key.shape[:2], self.vdim))

        q, k, v = self._heads(query, key, value)
        hint_is_enough = q.shape[2] == k.shape[2] == key.shape[1] and key_padding_mask is None
        causal = is_causal and hint_is_enough and not need_weights
        mask = None if causal else _additive_mask(attn_mask, key_padding_mask, q, k, keys=key.shape[1])
        dropout = self.dropout if self.training else 0.0
        weights = None
        if need_weights:
            scores = (q * self.head_dim**-0.5) @ k.transpose(-1, -2)
            weights = F.dropout((scores if mask is None else scores + mask).softmax(-1), dropout)
            out = weights @ v
        else:
            out = F.scaled_dot_product_attention(q, k, v, mask, dropout, causal)
        out = self.out_proj(out.transpose(1, 2).flatten(2))

        if weights is not None and average_attn_weights:
            weights = weights.mean(1)
        if not batched:
            return out.squeeze(0), None if weights is None else weights.squeeze(0)
        return out if self.batch_first else out.transpose(0, 1), weights

    def _heads(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values as (batch, head, token, feature)."""
        if self.in_proj_weight is None:
            w_q, w_k, w_v = self.q_proj_weight, self.k_proj_weight, self.v_proj_weight
        else:
            w_q, w_k, w_v = self.in_proj_weight.chunk(3)
        b_v = None if self.in_proj_bias is None else self.in_proj_bias[2 * self.embed_dim :]
        q = self.q_norm(self._split(F.linear(query, w_q)), w_q)
        k = self.k_norm(self._split(F.linear(key, w_k)), w_k)
        v = self._split(F.linear(value, w_v, b_v))
        if self.bias_k is not None and self.bias_v is not None:
            # One more token, whose key is a weight applied to the constant 1.
            bias_k = self.k_norm(self._split(self.bias_k), self.bias_k.view(-1, 1))
            k = torch.cat([k, bias_k.expand(len(k), -1, -1, -1)], 2)
            v = torch.cat([v, self._split(self.bias_v).expand(len(v), -1, -1, -1)], 2)
        if self.add_zero_attn:
            k, v = F.pad(k, (0, 0, 0, 1)), F.pad(v, (0, 0, 0, 1))
        return q, k, v

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)

    def merge_masks(self, *args: Any, **kwargs: Any) -> Any:
        # Only torch's fused kernels ask for this, just before they would bypass the norms.
        raise ValueError(
            "torch's fused attention would bypass q_norm and k_norm, because the forward pre-hook of this "
            "module was removed; call torch.backends.mha.set_fastpath_enabled(False)"
        )


def _no_fused_encoder_layer(module: nn.Module, args: Any) -> None:
    """Does nothing: torch's encoder layer keeps to self_attn.forward where a module has a hook."""


def _additive_mask(
    attn_mask: Tensor | None, key_padding_mask: Tensor | None, q: Tensor, k: Tensor, keys: int
) -> Tensor | None:
    """Both masks as one to add to the scores, broadcast to (batch, head, query, key); None without any.

    The masks speak of the first `keys` of k; the keys after them are seen by all.
    """
    batch, heads, queries, _ = q.shape
    masks = []
    if attn_mask is not None:
        _check_shape("attn_mask", attn_mask, (queries, keys), (batch * heads, queries, keys))
        own = (batch, heads) if attn_mask.dim() == 3 else (1, 1)
        masks.append(_additive(attn_mask, q).view(*own, queries, keys))
    if key_padding_mask is not None:
        _check_shape("key_padding_mask", key_padding_mask, (batch, keys))
        masks.append(_additive(key_padding_mask, q).view(batch, 1, 1, keys))
    return F.pad(sum(masks[1:], masks[0]), (0, k.shape[2] - keys)) if masks else None


def _additive(mask: Tensor, like: Tensor) -> Tensor:
    if mask.is_floating_point():
        return mask.to(like.dtype)
    if mask.dtype != torch.bool:
        raise ValueError(f"an attention mask of {mask.dtype} is ambiguous; give bool (True: ignore) or float")
    return torch.zeros_like(mask, dtype=like.dtype).masked_fill(mask, float("-inf"))


def _check_inputs(query: Tensor, key: Tensor, value: Tensor) -> None:
    if query.is_nested or key.is_nested or value.is_nested:
        raise ValueError(
            "normalised attention takes no nested tensors; nn.TransformerEncoder makes them from "
            "src_key_padding_mask in eval mode: set encoder.use_nested_tensor = False"
        )
    if not query.dim() == key.dim() == value.dim() or query.dim() not in (2, 3):
        raise ValueError(
            f"query, key and value have {query.dim()}, {key.dim()} and {value.dim()} axes; "
            "give 3 (batched) or 2 (unbatched) to all"
        )


def _check_shape(name: str, tensor: Tensor, *shapes: tuple[int, ...]) -> None:
    if tuple(tensor.shape) not in shapes:
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}; give {' or '.join(map(str, shapes))}")


def _refuse_unless_plain(mha: nn.Module) -> None:
    kind = f"{type(mha).__module__}.{type(mha).__name__}"
    if isinstance(mha, NormalizedMultiheadAttention):
        raise ValueError(f"{kind} has normalised queries and keys already; leave it out with exclude=")
    if type(mha) is not nn.MultiheadAttention or "forward" in vars(mha):
        raise ValueError(
            f"{kind} is not a plain nn.MultiheadAttention: what it overrides would be lost; normalise its "
            "queries and keys where they are computed, or leave it out with exclude="
        )
    if mha.head_dim == 1:
        raise ValueError(
            f"{kind} has heads of width 1, whose norm keeps only a sign; use fewer heads, or qk_norm=False"
        )
