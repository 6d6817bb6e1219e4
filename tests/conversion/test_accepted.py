"""What `allow=` accepts is never claimed to be scale-invariant, and `verify` goes on working after it."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import nap
from nap import Role
from nap.conversion.verification import scale_changes

X = torch.linspace(-2, 2, 24).sin().reshape(3, 8)


def unseen_swish(x: Tensor) -> Tensor:
    with torch._C.DisableTorchFunction():  # as compiled extensions do
        return x * torch.sigmoid(x)


class Parts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 2)


class Unseen(Parts):
    """The first layer's result enters a function that no recorder sees."""

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.second(unseen_swish(self.first(x)))))


class UnseenBesides(Parts):
    """A result that is normalised in one place enters an unseen function in another."""

    def forward(self, x: Tensor) -> Tensor:
        first = self.first(x)
        return self.head(F.layer_norm(unseen_swish(first) + self.second(F.layer_norm(first, (16,))), (16,)))


class Erfcx(Parts):
    """An operation that conversion does not know."""

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.second(torch.special.erfcx(self.first(x)))))


class Recurrent(Parts):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.GRU(8, 16)  # type: ignore[assignment]

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.second(self.first(x)[0])))


class Returned(Parts):
    def forward(self, x: Tensor) -> Any:
        hidden = self.second(F.relu(self.first(x)))
        return self.head(F.relu(hidden)), hidden


ACCEPTED = {
    Unseen: {"first.weight"},
    UnseenBesides: {"first.weight"},
    Erfcx: {"first.weight"},
    Recurrent: {"first.weight_ih_l0", "first.weight_hh_l0"},
    Returned: {"second.weight"},
}


@pytest.mark.parametrize(
    ("kind", "weights"), ACCEPTED.items(), ids=lambda kind: getattr(kind, "__name__", "")
)
def test_an_accepted_weight_is_not_claimed_to_be_scale_invariant(kind: Any, weights: set[str]) -> None:
    model = kind()
    problems = [problem.name for problem in nap.plan(model, X).problems]
    assert problems
    nap.normalize_(model, X, allow=problems)
    table = nap.weight_groups(model)
    assert not weights & {row.name for row in table.of(Role.SCALE_INVARIANT, Role.NORMALISED)}
    changes = scale_changes(model.double(), (X.double(),), {})
    assert max(changes.values(), default=0.0) < 1e-9


@pytest.mark.parametrize("kind", [Unseen, Erfcx, Recurrent])
def test_its_role_says_that_it_is_as_it_was(kind: Any) -> None:
    model = kind()
    nap.normalize_(model, X, allow=[problem.name for problem in nap.plan(model, X).problems])
    rows = [nap.weight_groups(model)[name] for name in ACCEPTED[kind]]
    assert {row.role for row in rows} == {Role.UNNORMALISED}
    assert nap.Projector(model).plan.rows[0].reason == "fixes the scale of what enters the nonlinearity"


class ErfcxBesides(Parts):
    """The unknown operation meets what the conversion has normalised for a ReLU."""

    def forward(self, x: Tensor) -> Tensor:
        first = self.first(x)
        return self.head(F.layer_norm(torch.special.erfcx(first) + F.relu(first), (16,)))


@pytest.mark.parametrize("kind", [*ACCEPTED, ErfcxBesides])
def test_a_model_with_something_accepted_can_be_verified(kind: Any) -> None:
    model = kind()
    nap.normalize_(model, X, allow=[problem.name for problem in nap.plan(model, X).problems])
    assert nap.verify(model, X).worst_change < 1e-9
    assert nap.plan(model, X, allow=["first"]).placements == ()


def test_a_name_that_was_never_a_problem_is_refused_still() -> None:
    with pytest.raises(ValueError, match="allow names 'bessel_j1', which is no problem"):
        nap.plan(Erfcx(), X, allow=["bessel_j1"])
