"""The GPU suite, `pytest -m cuda`: what needs a GPU, and what uses one if it is there."""

from __future__ import annotations

import pytest
import torch

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")
needs_gpu = [pytest.mark.cuda, pytest.mark.skipif(not CUDA, reason="needs a GPU")]
