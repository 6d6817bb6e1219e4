"""Our language models in EleutherAI's lm-eval: a cross-check of how we score LAMBADA, PIQA and Social IQA.

lm-eval asks with its own prompts, splits texts into tokens in its own way and makes its own metrics; the
log-likelihoods are computed here one text at a time, apart from `evaluation`.

    adapter = LMEvalAdapter(model, tokenizer, length=1024)
    lm_eval.simple_evaluate(adapter, tasks=["lambada_openai", "piqa", "social_iqa"])
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from lm_eval.api.model import TemplateLM
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from torch import nn
from torch.nn.functional import cross_entropy

from nap.lab.datasets.tokenizer import Tokenizer


class LMEvalAdapter(TemplateLM):
    """A model that maps tokens (B, L) to logits (B, L, vocabulary), for lm-eval's tasks that score texts.

    Args:
        length: of the model's context, in tokens.
        document_start: put the tokenizer's end token in front of each context, as documents begin in our
            training and in `evaluation`; lm-eval's own models of GPT-2's kind do not.
    """

    def __init__(
        self,
        model: nn.Module,
        tokenizer: Tokenizer,
        *,
        length: int,
        device: torch.device | str = "cpu",
        document_start: bool = True,
    ):
        super().__init__()
        self._model, self._tokenizer, self._length = model, tokenizer, length
        self._device, self._start = torch.device(device), document_start

    @property
    def eot_token_id(self) -> int:
        return self._tokenizer.end

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        return self._tokenizer.encode([string])[0]

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], **_: Any
    ) -> list[tuple[float, bool]]:
        results = []
        for _text, context, answer in requests:
            if len(answer) > self._length:
                raise ValueError(
                    f"an answer of {len(answer)} tokens is longer than {self._length}; leave this task out"
                )
            started = self._start and context[:1] != [self.eot_token_id]
            results.append(self._scored([self.eot_token_id] * started + context, answer))
        return results

    @torch.no_grad()
    def _scored(self, context: list[int], answer: list[int]) -> tuple[float, bool]:
        """The answer's log-likelihood, and whether each of its tokens is the first choice."""
        tokens = torch.tensor([*context, *answer][-(self._length + 1) :], device=self._device)
        logits = self._model(tokens[None, :-1])[0, -len(answer) :].double()
        targets = tokens[-len(answer) :]
        greedy = bool((logits.argmax(-1) == targets).all())
        return -cross_entropy(logits, targets, reduction="sum").item(), greedy

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        totals = []
        for request in requests:
            tokens = self.tok_encode(request.args[0])
            windows = get_rolling_token_windows(tokens, self.prefix_token_id, self._length, 1)
            totals.append(sum(self._scored(*make_disjoint_window(window))[0] for window in windows))
        return totals

    def generate_until(self, requests: Any, disable_tqdm: bool = False) -> list[str]:
        raise ValueError("this adapter scores texts and writes none; choose tasks of log-likelihoods")
