"""The plain transformer: causal, of unit variance at the start, and convertible in every form."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import nap
from nap.lab.models.transformer import Transformer
from nap.weights import Role

SMALL = {"blocks": 2, "heads": 2, "width": 16}
FORMS = [
    pytest.param({"norm": norm, "tied": tied, "positions": positions}, id=f"{norm}-{tied}-{positions}")
    for norm in ("layer", "none")
    for tied in (False, True)
    for positions in ("learnt", "sines")
]


def small(**options: object) -> Transformer:
    torch.manual_seed(0)
    return Transformer(32, 12, **SMALL, **options)  # type: ignore[arg-type]


def tokens(count: int = 3) -> torch.Tensor:
    return torch.randint(0, 32, (count, 12), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("form", FORMS)
def test_the_past_does_not_see_the_future(form: dict[str, object]) -> None:
    net, x = small(**form).double(), tokens()
    y = x.clone()
    y[:, 7:] = (y[:, 7:] + 1) % 32
    torch.testing.assert_close(net(x)[:, :7], net(y)[:, :7])
    assert not torch.allclose(net(x)[:, 7:], net(y)[:, 7:])


@pytest.mark.parametrize("form", FORMS)
def test_it_converts_and_everything_is_projected(form: dict[str, object]) -> None:
    net, x = small(**form), tokens()
    plan = nap.normalize_(net, x)
    assert str(plan).count("RMSNorm on q, per head of 8") == 2
    assert "nothing left to normalise" in str(nap.verify(net, x))
    table = nap.weight_groups(net)
    assert {row.name for row in table.of(Role.SCALE_INVARIANT)} == {
        f"blocks.{i}.{name}.weight" for i in (0, 1) for name in ("attention.query", "attention.key", "up")
    }
    projector = nap.Projector(net, output="project", embeddings="project", branches="project")
    matrices = [name for name, p in net.named_parameters() if p.ndim == 2]
    assert projector.plan.names("project") == matrices  # tables of tokens and positions, too


def test_signals_start_with_unit_variance() -> None:
    torch.manual_seed(0)
    net = Transformer(256, 64, norm="none", branches="share")
    x = torch.randint(0, 256, (8, 64))
    seen: list[float] = []
    for block in net.blocks:
        block.register_forward_hook(lambda module, args, output: seen.append(output.std().item()))
    logits = net(x)
    assert 0.9 < seen[0] < 1.2
    assert seen[-1] < 1.6
    assert 0.5 < logits.std().item() < 1.6


@pytest.mark.parametrize(("branches", "size"), [("unit", 1.0), ("share", 8**-0.5)])
def test_a_branch_starts_as_large_as_was_asked(branches: Any, size: float) -> None:
    torch.manual_seed(0)
    net, seen = Transformer(256, 64, branches=branches), []
    net.blocks[2].down.register_forward_hook(  # type: ignore[union-attr]
        lambda module, args, output: seen.append((output.std() / args[0].square().mean().sqrt()).item())
    )
    net(torch.randint(0, 256, (8, 64)))
    assert seen == pytest.approx([size], abs=0.1)


def test_recomputing_activations_changes_nothing() -> None:
    plain, thrifty, x = small().double(), small(recompute=True).double(), tokens()
    for net in (plain, thrifty):
        net(x).square().mean().backward()
    for one, other in zip(plain.parameters(), thrifty.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)


def test_the_networks_of_the_paper_have_the_stated_size() -> None:
    with torch.device("meta"):
        large = Transformer(32_128, 512, blocks=12, heads=12, width=1536)  # T5's vocabulary
    millions = sum(p.numel() for p in large.parameters()) / 1e6
    assert 380 < millions < 450


def test_mistakes_are_refused() -> None:
    with pytest.raises(ValueError, match="13 tokens are more than the 12 positions"):
        small()(torch.zeros(1, 13, dtype=torch.int64))
    with pytest.raises(ValueError, match="width of 16 cannot be divided among 3 heads"):
        Transformer(8, 8, blocks=1, heads=3, width=16)


def test_tied_networks_share_one_table() -> None:
    net = small(tied=True)
    assert net.head is None
    assert sum(isinstance(module, nn.Embedding) for module in net.modules()) == 2


def test_sines_are_as_large_as_tokens_and_not_learnt() -> None:
    net = small(positions="sines")
    assert net.positions(torch.arange(12)).square().mean().item() == pytest.approx(0.5)
    assert net.tokens.weight.square().mean().item() == pytest.approx(0.5, rel=0.2)
    assert not list(net.positions.parameters())
    assert not net.positions.state_dict()
    a, b = (net.positions(torch.tensor([at, at + 5])) for at in (0, 6))
    torch.testing.assert_close((a[0] @ a[1]), (b[0] @ b[1]))  # a distance is the same everywhere
    with pytest.raises(ValueError, match="make it even"):
        Transformer(32, 12, blocks=1, heads=3, width=9, positions="sines")
