"""What a training step of the paper's transformer costs, and what NaP adds to it.

    python benchmarks/language.py --device cuda                       400M parameters, batch 128 of 512 tokens
    python benchmarks/language.py --device cuda --batch 32            the optimizer weighs more
    python benchmarks/language.py --blocks 2 --width 64 --heads 2 --batch 4 --length 64    on this CPU

The arms take turns in one process, so their ratios hold whatever else the machine does. A step is: forward,
backward, norms of the gradients, clipping, fused AdamW, projection. "peak" is the share of the chip's dense
bfloat16 rate that the products of the plain network, forward and backward, amount to; norms, optimizer and
projection are not counted as work.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import torch

from nap.lab.loops.language.settings import BASELINE, NAP, NORM_ONLY, TransformerArm, TransformerConfig
from nap.lab.loops.language.trainer import Trainer, build, transformer_factory
from nap.lab.models.transformer import Transformer

ARMS = (BASELINE, NORM_ONLY, NAP)


def floating_point_operations(net: Transformer, batch: int, length: int) -> float:
    """Of the products of one step: six a weight and token; causal attention looks at half of all pairs."""
    weights = sum(p.numel() for name, p in net.named_parameters() if p.ndim == 2 and "blocks" in name)
    head = net.tokens.weight.numel()
    attention = 12 * len(net.blocks) * net.width * length / 2
    return batch * length * (6 * (weights + head) + attention)


def trainer(arm: TransformerArm, options: argparse.Namespace) -> tuple[Trainer, float]:
    """The arm's network in training, and the work of a step of the plain one."""
    make = transformer_factory(
        TransformerConfig(options.blocks, options.heads, options.width),
        options.vocabulary,
        options.length,
        tied=options.tied,
        recompute=options.recompute,
    )
    torch.manual_seed(0)
    example = torch.zeros(1, 8, dtype=torch.int64)
    model, projector = build(arm, make, example)
    work = floating_point_operations(make(), options.batch, options.length)
    cuda = torch.device(options.device).type == "cuda"
    return Trainer(
        model.to(options.device),
        projector,
        learning_rate=2e-4,
        spans={"accuracy": slice(None)},
        weight_decay=0.1,
        clip=1.0,
        half=cuda,
        compile_=cuda and not options.eager,
    ), work


def seconds(one: Trainer, strings: torch.Tensor, options: argparse.Namespace) -> float:
    """Of one step, mean over a few."""
    wait = torch.cuda.synchronize if torch.device(options.device).type == "cuda" else (lambda: None)
    wait()
    began = time.perf_counter()
    for _ in range(options.steps):
        one.update(*strings.chunk(options.parts))
    wait()
    return (time.perf_counter() - began) / options.steps


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--blocks", type=int, default=12)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--width", type=int, default=1536)
    parser.add_argument("--vocabulary", type=int, default=32_000)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--parts", type=int, default=1, help="parts in which a batch is computed")
    parser.add_argument("--tied", action="store_true")
    parser.add_argument("--recompute", action="store_true")
    parser.add_argument("--eager", action="store_true", help="without torch.compile")
    parser.add_argument("--steps", type=int, default=5, help="steps of an arm's turn")
    parser.add_argument("--turns", type=int, default=5, help="turns of each arm; the median counts")
    parser.add_argument("--peak", type=float, default=990.0, help="TFLOP/s, dense bfloat16 (H100, H200: 990)")
    parser.add_argument("--json", type=Path, help="write the rows here")
    options = parser.parse_args()

    strings = torch.randint(options.vocabulary, (options.batch, options.length + 1), device=options.device)
    trainers = {arm.name: trainer(arm, options) for arm in ARMS}
    for name, (one, _) in trainers.items():
        began = time.perf_counter()
        seconds(one, strings, options)  # compiles, and warms up
        print(f"{name}: ready after {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
    times: dict[str, list[float]] = {name: [] for name in trainers}
    for _ in range(options.turns):
        for name, (one, _) in trainers.items():
            times[name].append(seconds(one, strings, options))
    where = torch.cuda.get_device_name() if torch.device(options.device).type == "cuda" else "cpu"
    size = sum(p.numel() for p in trainers[BASELINE.name][0].parameters)
    tokens = options.batch * options.length
    print(f"{where}, torch {torch.__version__}, {size / 1e6:.0f}M parameters, {tokens:,} tokens a step")
    base, rows = statistics.median(times[BASELINE.name]), []
    for name, (_, work) in trainers.items():
        step = statistics.median(times[name])
        row = {
            "arm": name,
            "ms": 1e3 * step,
            "tokens/s": tokens / step,
            "TFLOP/s": work / step / 1e12,
            "peak": work / step / 1e12 / options.peak,
            "over baseline": step / base - 1,
        }
        rows.append(row)
        print(
            f"{name:<10} {row['ms']:8.2f} ms  {row['tokens/s']:>9,.0f} tokens/s  "
            f"{row['TFLOP/s']:6.1f} TFLOP/s ({100 * row['peak']:4.1f} % of peak)  "
            f"{100 * row['over baseline']:+5.1f} %"
        )
    if torch.device(options.device).type == "cuda":
        print(f"memory: {torch.cuda.max_memory_allocated() / 1e9:.1f} GB with all three arms on the device")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
