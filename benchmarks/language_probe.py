"""Does projection cost a transformer anything? 8 blocks of width 512 on text8, each arm at its own best rate.

    nap data fetch text8
    python benchmarks/language_probe.py --rows probe.jsonl                 on a GPU
    python benchmarks/language_probe.py --rows probe.jsonl --net zero      branches at zero, GELU
    python benchmarks/language_probe.py --rows tiny.jsonl --blocks 1 --width 32 --heads 2 --steps 3 \\
        --batch 2 --length 16 --tokenizer bytes --tokens 100000 --rates 1e-3 --seeds 1      tries it on a CPU

800 updates of 64 × 512 tokens (text8 in 8,192 pieces), AdamW, weight decay 0.1, gradients clipped at 1, a
warm-up, then a cosine. Rates are tuned for each arm on seeds from 100, results are on seeds 0, 1, 2. Every
finished trial is a line in the file, and what is there is not run again: stop it and start it as you like, or
start it with some --arms at a time. The bars: NaP ≤ norm only + 0.01, and NaP ≤ plain − 0.10.

unit: the lab's transformer, tied, branches as large as the stream, ReLU. zero: `language_start.py`'s, tied,
all at 0.02, residual projections at zero, GELU.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from language_start import PINNED, Arm, Net
from rate_trials import Trials, bar, compare
from torch import Tensor, nn

import nap
from nap.lab.datasets.corpus import Corpus, load
from nap.lab.loops.language.settings import TransformerConfig
from nap.lab.loops.language.trainer import Trainer, transformer_factory
from nap.schedules import warmup_cosine_value

RMS = {"norm": "rms"}
FREE = {"output": "free", "embeddings": "free"}
ARMS = {
    "plain": Arm(),
    "norm only": Arm(RMS),
    "NaP": Arm(RMS, {}),
    "all projected": Arm(RMS, PINNED),
    "tables free": Arm(RMS, PINNED | FREE),
    "all three free": Arm(RMS, FREE | {"branches": "free"}),
    "all three grow": Arm(RMS, {"output": "grow", "embeddings": "grow", "branches": "grow"}),
    "gains": Arm(RMS | {"gains": "small"}, {}),
    "norm only, LayerNorm": Arm({}),
    "NaP, LayerNorm": Arm({}, {}),
}
RATES = [1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2, 3.2e-2]


def maker(options: argparse.Namespace, vocabulary: int) -> Callable[[], nn.Module]:
    """What builds the plain network."""
    if options.net == "unit":
        network = TransformerConfig(options.blocks, options.heads, options.width)
        return transformer_factory(network, vocabulary, options.length, tied=True)
    return Net(
        options.blocks,
        options.width,
        tied=True,
        zero=True,
        heads=options.heads,
        length=options.length,
        vocabulary=vocabulary,
    ).make


def trained(corpus: Corpus, options: argparse.Namespace, arm: str, rate: float, seed: int) -> float:
    """The validation loss of one network at the end; infinite where it breaks."""
    device, windows = torch.device(options.device), corpus.train.windows(options.length)
    torch.manual_seed(seed)
    model, how = maker(options, corpus.tokenizer.vocab_size)(), ARMS[arm]
    if how.normalize is not None:
        nap.normalize_(model, windows[[0]][:, :-1], **how.normalize)
    trainer = Trainer(
        model.to(device),
        None if how.project is None else nap.Projector(model, **how.project),
        learning_rate=lambda update: _rate(update, rate, options),
        spans={"accuracy": slice(None)},
        weight_decay=0.1,
        clip=1.0,
        half=device.type == "cuda",
        compile_=device.type == "cuda" and not options.eager,
    )
    for step in range(options.steps):
        trainer.update(windows.batch(seed, step, options.batch).to(device))
    try:
        trainer.monitor.check()
    except ValueError:  # a loss or gradient that is not finite
        return float("inf")
    return trainer.evaluate(_eval_batches(corpus, options))[0]


def _rate(update: int, peak: float, options: argparse.Namespace) -> float:
    value = warmup_cosine_value(
        update + 1,
        peak,
        warmup_steps=round(options.warm_up * options.steps),
        total_steps=options.steps,
        init_value=0.0,
        end_value=0.0,
    )
    return float(value)


def _eval_batches(corpus: Corpus, options: argparse.Namespace) -> Iterator[Tensor]:
    windows = corpus.valid.windows(options.length)
    count = min(options.eval_windows, len(windows))
    for start in range(0, count, options.batch):
        yield windows[range(start, min(start + options.batch, count))].to(options.device)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=Path, required=True, help="finished trials, a line of JSON each")
    parser.add_argument("--net", choices=["unit", "zero"], default="unit")
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=["plain", "norm only", "NaP"])
    parser.add_argument("--rates", nargs="+", type=float, default=RATES)
    parser.add_argument("--seeds", type=int, default=3, help="of the results: 0, 1, …")
    parser.add_argument("--tuning-seeds", type=int, default=1, help="of the tuning: 100, …")
    parser.add_argument("--blocks", type=int, default=8)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--warm-up", type=float, default=0.02, help="share of the updates")
    parser.add_argument("--eval-windows", type=int, default=256, help="windows of other documents")
    parser.add_argument("--tokenizer", default="bpe-8192")
    parser.add_argument("--tokens", type=int, default=0, help="tokens of the text to learn from; 0 for all")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--eager", action="store_true", help="without torch.compile")
    options = parser.parse_args()
    corpus = load(["text8"], options.tokenizer, limit=options.tokens or None)
    same = (
        "net",
        "blocks",
        "width",
        "heads",
        "length",
        "batch",
        "steps",
        "warm_up",
        "eval_windows",
        "tokenizer",
    )
    common: dict[str, Any] = {name: getattr(options, name) for name in (*same, "tokens")}

    def train(arm: str, rate: float, seed: int) -> float:
        return trained(corpus, options, arm, rate, seed)

    trials = Trials(train, options.rows, common)
    means = compare(
        trials, options.arms, options.rates, seeds=options.seeds, tuning_seeds=options.tuning_seeds
    )
    bar(means, "NaP", "norm only", 0.01)
    bar(means, "NaP", "plain", -0.10)


if __name__ == "__main__":
    main()
