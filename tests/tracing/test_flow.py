"""The record of a forward: degrees of homogeneity against brute force, and what is followed at all."""

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from nap.norms.norm import Norm
from nap.tracing import homogeneity
from nap.tracing.homogeneity import MIXED, NEAR, Degrees
from nap.tracing.recorder import Recorder, record
from nap.tracing.values import held_tensors

WEIGHTS = 3
GUARD = 1e-12  # the absolute eps of the norms below: far under the values that they get


def root_mean_square(x: Tensor) -> Tensor:
    return (x.square().mean(-1, keepdim=True) + GUARD).sqrt()


def standardised(x: Tensor) -> Tensor:
    x = x - x.mean(-1, keepdim=True)
    return x * torch.rsqrt(x.var(-1, keepdim=True, correction=0) + GUARD)


ONE: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu, "gelu": F.gelu, "tanh": torch.tanh, "softmax": lambda x: x.softmax(-1), "abs": torch.abs,
    "square": torch.square, "cube": lambda x: x**3, "root": lambda x: x.abs().sqrt(), "neg": torch.neg,
    "double": lambda x: 2.0 * x, "plus one": lambda x: x + 1.0,
    "plus one by name": lambda x: x.add(other=1.0), "inverse": lambda x: 1.0 / (2.0 + x.square()),
    "centre": lambda x: x - x.mean(-1, keepdim=True),
    "sum": lambda x: x.sum(-1, keepdim=True).expand(3, 4), "cumsum": lambda x: x.cumsum(-1),
    "product": lambda x: x.prod(-1, keepdim=True).expand(3, 4), "cumprod": lambda x: x.cumprod(-1),
    "logcumsumexp": lambda x: x.logcumsumexp(-1), "max": lambda x: x.amax(-1, keepdim=True).expand(3, 4),
    "clamp below": lambda x: x.clamp(min=0), "clamp": lambda x: x.clamp(-1, 1),
    "sort": lambda x: x.sort(-1)[0],
    "threshold": lambda x: F.threshold(x, 0.1, 0.0), "positive": lambda x: torch.where(x > 0, x, 0.5 * x),
    "above one": lambda x: (x > 1).to(x.dtype), "truncate": lambda x: x.long().to(x.dtype),
    "largest": lambda x: F.one_hot(x.argmax(-1), 4).to(x.dtype), "flip": lambda x: x.flip(-1),
    "bucket": lambda x: torch.bucketize(x.contiguous(), torch.linspace(-1, 1, 5)).to(x.dtype),
    "select": lambda x: x[:, [0, 0, 3, 1]], "complex": lambda x: torch.complex(x, x).real,
    "hypot": lambda x: torch.hypot(x, x.flip(-1)), "lerp": lambda x: torch.lerp(x, x.flip(-1), x),
    "local response": lambda x: F.local_response_norm(x[:, :, None], 3)[:, :, 0],
}  # fmt: skip
NORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "layer norm": lambda x: F.layer_norm(x, (4,), eps=GUARD),
    "standardise": standardised,
    "over rms": lambda x: x / root_mean_square(x),
    "over length": lambda x: x / (x.norm(dim=-1, keepdim=True) + GUARD),
    "unit": lambda x: F.normalize(x, dim=-1),
}
TWO: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "matmul": lambda a, b: a @ b.mT @ a,
    "cat": lambda a, b: torch.cat([a, b], -1)[:, 2:6], "stack": lambda a, b: torch.stack([a, b]).mean(0),
    "over other": lambda a, b: a / (root_mean_square(b) + GUARD),
    "mixture": lambda a, b: torch.lerp(a, b, 0.3), "larger": torch.maximum,
    "where": lambda a, b: torch.where(a > b, a, b),
    "addcmul": lambda a, b: torch.addcmul(a, a, b),
    "cosine": lambda a, b: a * F.cosine_similarity(a, b)[:, None],
}  # fmt: skip
PARAMETRIC = ("linear", "linear and norm", "scale")
WITH_EPS = {*NORMS, "linear and norm", "over other", "cosine"}
Step = tuple[str, int, int]


class Expression(nn.Module):
    """A stack machine: each step makes a new value from two of those before it, or one and a weight."""

    def __init__(self, steps: list[Step]):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.weights = nn.ParameterList(
            nn.Parameter(torch.randn(4, 4, generator=generator)) for _ in range(WEIGHTS)
        )
        self.norm = Norm(4, scale=False, offset=False)
        self.norm.eps = GUARD
        self.steps, self.smallest = steps, math.inf

    def forward(self, x: Tensor) -> Tensor:
        values = [x]
        for name, i, j in self.steps:
            a, b, weight = values[i % len(values)], values[j % len(values)], self.weights[j % WEIGHTS]
            if name in PARAMETRIC:
                y = a * weight.mean() if name == "scale" else F.linear(a, weight)
                values.append(self.norm(y, weight) if name == "linear and norm" else y)
            elif name in TWO:
                guarded = b.detach().norm(dim=-1).min() if name == "over other" else math.inf
                self.smallest = min(self.smallest, float(guarded))
                values.append(TWO[name](a, b))
            elif name in NORMS:
                spread = (a - a.mean(-1, keepdim=True)).detach().norm(dim=-1).min()
                self.smallest = min(self.smallest, float(spread))
                values.append(NORMS[name](a))
            else:
                values.append(ONE[name](a))
        return values[-1]


def claims(model: nn.Module, x: Tensor) -> Degrees:
    with Recorder(model) as recorder:
        with torch._C.DisableTorchFunction():
            recorder.inputs((x,))
        degrees = recorder.value(model(x)).degrees
    return {name: degrees.get(name, -0.0) for name, _ in model.named_parameters()} | {
        f"{name} exactly": 0.0 for name, _ in model.named_parameters() if name not in degrees
    }


steps = st.tuples(
    st.sampled_from([*PARAMETRIC * 6, *NORMS, *NORMS, *TWO, *TWO, *ONE]), st.integers(0, 9), st.integers(0, 9)
)


@settings(deadline=None, max_examples=200)
@given(st.lists(steps, min_size=2, max_size=10))
def test_every_degree_that_is_claimed_is_true(program):
    torch.manual_seed(0)
    with torch.random.fork_rng():
        model, x = Expression(program).double(), torch.randn(3, 4, dtype=torch.float64)
    with torch.no_grad():
        before = model(x)
        size = before.abs().max()
        assume(model.smallest > 1e-2 and 1e-3 < size < 1e3)
        degrees = claims(model, x)
        for name, parameter in model.named_parameters():
            if degrees[name] == MIXED:
                continue
            exact = f"{name} exactly" in degrees or not WITH_EPS.intersection(step for step, *_ in program)
            tolerance = 1e-9 if exact else 1e-5  # W·norm(Wx) has degree 1 but for the eps of the norm
            parameter.mul_(2)
            after = model(x)
            parameter.div_(2)
            gap = (after - before * 2.0 ** degrees[name]).abs().max() / after.abs().max().clamp_min(1e-9)
            assert gap < tolerance, f"{name} is said to have degree {degrees[name]} in {program}"


@given(
    st.dictionaries(st.sampled_from("abc"), st.sampled_from([-1.0, NEAR, 1.0, 2.0, MIXED])),
    st.sampled_from([-2.0, 0.5]),
)
def test_the_algebra_agrees_with_itself(value, exponent):
    assert homogeneity.of_sum([value, value]) == value
    assert homogeneity.of_product([value, {}]) == value
    there_and_back = homogeneity.of_power(homogeneity.of_power(value, exponent), 1 / exponent)
    assert there_and_back == value
    cancelled = homogeneity.of_product([value, homogeneity.of_power(value, -1)])
    assert cancelled == homogeneity.of_norm(value)
    mixed = {name for name, degree in value.items() if degree == MIXED}
    assert mixed <= {n for n, d in homogeneity.of_nonlinearity(value).items() if d == MIXED}
    assert set(homogeneity.of_norm(value, exact=value)) == mixed | {n for n, d in value.items() if d == NEAR}


class Through(nn.Module):
    """A function of the input, a layer, and what comes after it."""

    def __init__(self, before: Callable, after: Callable):
        super().__init__()
        self.layer, self.head, self.before, self.after = nn.Linear(4, 4), nn.Linear(4, 2), before, after

    def forward(self, x):
        return self.head(self.after(self.layer(self.before(x))))


INDICES = {
    "one-hot": lambda x: F.one_hot(x.argmax(-1), 4).float(),
    "buckets": lambda x: torch.bucketize(x, torch.linspace(-1, 1, 5)).float(),
    "cast": lambda x: x.long().float(),
    "comparison": lambda x: (x > 0).float(),
    "written into zeros": lambda x: torch.zeros(3, 4).index_put((torch.arange(3),), x),
    "copied": lambda x: torch.empty_like(x).copy_(x),
    "from an object": lambda x: torch.distributions.Normal(x, 1.0).mean,
}


@pytest.mark.parametrize("before", INDICES.values(), ids=INDICES.keys())
def test_what_is_computed_from_the_input_stays_data(before):
    flow = record(Through(before, F.relu), (torch.randn(3, 4),), {})
    assert [meeting.operation for meeting in flow.meetings] == ["relu"]


CURVES = {
    "abs": torch.abs, "square": torch.square, "hypot": lambda x: torch.hypot(x, x),
    "softsign": lambda x: x / (1 + x.abs()),
    "prod": lambda x: x * x.prod(-1, keepdim=True), "std": lambda x: x + x.std(-1, keepdim=True),
    "logcumsumexp": lambda x: x.logcumsumexp(-1), "threshold": lambda x: F.threshold(x, 0.1, 20.0),
    "response": lambda x: F.local_response_norm(x[:, :, None], 2)[:, :, 0], "mask": lambda x: x * (x > 0),
}  # fmt: skip


@pytest.mark.parametrize("after", CURVES.values(), ids=CURVES.keys())
def test_whatever_bends_a_layers_result_is_a_meeting(after):
    flow = record(Through(nn.Identity(), after), (torch.randn(3, 4),), {})
    assert {carry.site for meeting in flow.meetings for carry in meeting.carry} == {"layer"}
    assert all(meeting.hidden for meeting in flow.meetings)


@pytest.mark.parametrize("after", [*NORMS.values(), torch.neg, lambda x: x.flip(-1), lambda x: x.cumsum(-1)])
def test_norms_and_linear_maps_are_none(after):
    assert record(Through(nn.Identity(), after), (torch.randn(3, 4),), {}).meetings == []


def test_tensors_are_found_in_what_models_return():
    x, y = torch.zeros(2), torch.ones(2)

    class Batch:
        def __init__(self) -> None:
            self.x, self.rest = x, {"y": [y]}

    assert [t is x or t is y for t in held_tensors(Batch())] == [True, True]
    assert sum(t is x for t in held_tensors((torch.distributions.Normal(x, y), y))) >= 1
    assert [*held_tensors((y, Batch()))] == [y]  # a cache beside the outputs is none of them
    assert [*held_tensors(3)] == []
