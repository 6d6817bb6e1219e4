"""A small GPT in one file, in nanoGPT's style, on characters of Python's library. NaP is the marked lines.

Its initialization is nanoGPT's: a standard deviation of 0.02, smaller by √(2·blocks) at the end of residual
branches, and an output layer tied to the token embedding. NaP leaves embedding and output free and lets small
branches grow.
"""

from __future__ import annotations

import argparse
import inspect
import math
import textwrap
import time

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import nap

BLOCKS, HEADS, WIDTH, CONTEXT, BATCH = 2, 4, 64, 64, 32
WARM_UP, WEIGHT_DECAY = 50, 0.1


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH, bias=False), nn.LayerNorm(WIDTH, bias=False)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        heads = self.qkv(self.norm_1(x)).view(batch, length, 3, HEADS, WIDTH // HEADS)
        q, k, v = (part.transpose(1, 2) for part in heads.unbind(2))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(attended.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.down(F.gelu(self.up(self.norm_2(x))))


class GPT(nn.Module):
    def __init__(self, vocabulary: int):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(BLOCKS)))
        self.norm, self.head = nn.LayerNorm(WIDTH, bias=False), nn.Linear(WIDTH, vocabulary, bias=False)
        self.head.weight = self.tokens.weight
        for name, parameter in self.named_parameters():
            if parameter.ndim > 1:
                ends_a_branch = name.endswith(("proj.weight", "down.weight"))
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * BLOCKS) if ends_a_branch else 0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        return self.head(self.norm(self.blocks(x)))


def library() -> tuple[Tensor, Tensor, int]:
    """Characters of Python's library for training and evaluation, and how many kinds there are."""
    text = "".join(inspect.getsource(module) for module in (argparse, textwrap, inspect))
    known = {character: i for i, character in enumerate(sorted(set(text)))}
    tokens = torch.tensor([known[character] for character in text])
    return tokens[: len(tokens) * 9 // 10], tokens[len(tokens) * 9 // 10 :], len(known)


def windows(tokens: Tensor, count: int) -> tuple[Tensor, Tensor]:
    i = torch.randint(len(tokens) - CONTEXT - 1, (count, 1)) + torch.arange(CONTEXT + 1)
    return tokens[i[:, :-1]], tokens[i[:, 1:]]


def loss_of(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten())


def train(updates: int, seed: int, *, lr: float = 3e-3, use_nap: bool = True) -> tuple[float, float]:
    """The validation loss before and after."""
    torch.manual_seed(seed)
    learnt, held_out, vocabulary = library()
    model = GPT(vocabulary)
    valid = windows(held_out, 64)
    groups = [  # as nanoGPT's configure_optimizers: matrices decay, and nothing else
        {"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": WEIGHT_DECAY},
        {"params": [p for p in model.parameters() if p.ndim == 1], "weight_decay": 0.0},
    ]
    if use_nap:
        nap.normalize_(model, valid[0][:2], norm="rms")  # NaP: step 1, before the optimizer is built
        projector = nap.Projector(model)  # NaP
        groups = projector.param_groups(weight_decay=WEIGHT_DECAY)  # NaP: no decay on projected weights
    optimizer = torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95))
    if use_nap:
        projector.attach(optimizer)  # NaP: step 2, after each optimizer.step()

    before = evaluate(model, valid)
    for update in range(updates):
        falls = 0.5 * (1 + math.cos(math.pi * update / updates))
        for group in optimizer.param_groups:
            group["lr"] = lr * min((update + 1) / WARM_UP, 0.1 + 0.9 * falls)
        loss = loss_of(model, windows(learnt, BATCH))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if (update + 1) % max(updates // 5, 1) == 0:
            held_out_loss = evaluate(model, valid)
            print(f"update {update + 1:5}  training loss {loss.item():.3f}  held out {held_out_loss:.3f}")
    return before, evaluate(model, valid)


@torch.no_grad()
def evaluate(model: nn.Module, batch: tuple[Tensor, Tensor]) -> float:
    return loss_of(model, batch).item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--updates", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--without-nap", action="store_true", help="train the plain model")
    args = parser.parse_args()
    torch.set_num_threads(1)
    start = time.perf_counter()
    before, after = train(args.updates, args.seed, lr=args.lr, use_nap=not args.without_nap)
    print(f"held-out loss {before:.3f} → {after:.3f}, {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
