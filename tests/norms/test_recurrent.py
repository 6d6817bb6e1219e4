"""Normalised recurrent nets: torch's own semantics, scale-invariant weights, no leak in time or batch."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pack_sequence, unpack_sequence
from torch.testing import assert_close

from nap.norms import recurrent
from nap.norms.norm import Eps, Norm
from nap.norms.recurrent import normalize_recurrent_

INPUT, HIDDEN, TIME, BATCH = 3, 4, 5, 3
EXACT: dict[str, Any] = {"rtol": 0, "atol": 1e-12}

SEQUENCES: dict[str, tuple[Any, dict[str, Any]]] = {
    "LSTM": (nn.LSTM, {}),
    "LSTM proj": (nn.LSTM, {"proj_size": 2}),
    "GRU": (nn.GRU, {}),
    "RNN tanh": (nn.RNN, {}),
    "RNN relu": (nn.RNN, {"nonlinearity": "relu"}),
}
CELLS: dict[str, tuple[Any, dict[str, Any]]] = {
    "LSTMCell": (nn.LSTMCell, {}),
    "GRUCell": (nn.GRUCell, {}),
    "RNNCell tanh": (nn.RNNCell, {}),
    "RNNCell relu": (nn.RNNCell, {"nonlinearity": "relu"}),
}
each_sequence = pytest.mark.parametrize("kind", SEQUENCES)
each_cell = pytest.mark.parametrize("kind", CELLS)
each_kind = pytest.mark.parametrize("kind", [*SEQUENCES, *CELLS])


class Shift(nn.Module):
    """Takes what `Norm` takes, and only adds the norm's offset."""

    def __init__(self, norm: Norm):
        super().__init__()
        self.offset = norm.bias

    def forward(self, y: Tensor, *weights: Tensor, scale: Tensor | None = None) -> Tensor:
        return y if self.offset is None else y + self.offset


def plain(kind: str, seed: int = 0, **options) -> Any:
    torch.manual_seed(seed)
    make, own = {**SEQUENCES, **CELLS}[kind]
    return make(INPUT, HIDDEN, dtype=torch.float64, **own, **options)


def normalized(kind: str, seed: int = 0, *, centre: bool = True, eps: Eps = "relative", **options) -> Any:
    module = plain(kind, seed, **options)
    normalize_recurrent_(module, centre=centre, eps=eps)
    return module


def without_norms(module: Any) -> Any:
    bare = copy.deepcopy(module)
    normalize_recurrent_(bare, offset=module.bias)
    for name, norm in list(bare.named_children()):
        setattr(bare, name, Shift(norm))
    return bare


def tokens(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def first_state(module: Any, *batch: int) -> Any:
    count = module.num_layers * (1 + module.bidirectional)
    h = tokens(count, *batch, module.proj_size or HIDDEN, seed=2)
    return (h, tokens(count, *batch, HIDDEN, seed=3)) if module.mode == "LSTM" else h


def run(module: Any, seed: int = 1) -> Any:
    """The output of a module of any kind on a fixed batch."""
    if isinstance(module, nn.RNNCellBase):
        h = tokens(BATCH, HIDDEN, seed=seed + 1)
        out = module(tokens(BATCH, INPUT, seed=seed), (h, h) if isinstance(module, nn.LSTMCell) else h)
        return out[0] if isinstance(module, nn.LSTMCell) else out
    return module(tokens(TIME, BATCH, INPUT, seed=seed))[0]


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize("num_layers", [1, 3])
@pytest.mark.parametrize("bias", [True, False])
@each_sequence
def test_without_its_norms_it_is_torchs_module(kind, bias, num_layers, bidirectional, batch_first):
    module = plain(
        kind, bias=bias, num_layers=num_layers, bidirectional=bidirectional, batch_first=batch_first
    )
    bare = without_norms(module)
    x = tokens(BATCH, TIME, INPUT) if batch_first else tokens(TIME, BATCH, INPUT)
    ragged = [tokens(length, INPUT, seed=length) for length in (2, 5, 1, 5)]
    for args in (
        (x,),
        (x, first_state(module, BATCH)),
        (tokens(TIME, INPUT),),
        (tokens(TIME, INPUT), first_state(module)),
        (pack_sequence(ragged, enforce_sorted=False),),
        (pack_sequence(ragged, enforce_sorted=False), first_state(module, 4)),
        (pack_padded_sequence(x, torch.tensor([5, 3, 2]), batch_first=batch_first),),
    ):
        (out, state), (expected, last) = bare(*args), module(*args)
        assert_close(state, last, **EXACT)
        if isinstance(expected, PackedSequence):
            assert isinstance(out, PackedSequence)
            assert_close(unpack_sequence(out), unpack_sequence(expected), **EXACT)
        else:
            assert_close(out, expected, **EXACT)


@each_sequence
def test_dropout_falls_where_torchs_falls(kind):
    module = plain(kind, num_layers=2, dropout=0.5, bidirectional=True)
    bare, outputs = without_norms(module), []
    for net in (module, bare):
        torch.manual_seed(4)
        outputs.append(run(net))
    assert_close(outputs[1], outputs[0], **EXACT)
    assert not torch.allclose(run(bare.eval()), outputs[1])


@pytest.mark.parametrize("bias", [True, False])
@each_cell
def test_a_cell_without_its_norms_is_torchs_cell(kind, bias):
    cell = plain(kind, bias=bias)
    bare = without_norms(cell)
    for batch in ((BATCH,), ()):
        x, h, c = tokens(*batch, INPUT), tokens(*batch, HIDDEN, seed=2), tokens(*batch, HIDDEN, seed=3)
        state = (h, c) if isinstance(cell, nn.LSTMCell) else h
        assert_close(bare(x), cell(x), **EXACT)
        assert_close(bare(x, state), cell(x, state), **EXACT)


@pytest.mark.parametrize("centre", [True, False])
@pytest.mark.parametrize("factor", [0.5, 3.0])
@each_kind
def test_input_and_hidden_weights_are_scale_invariant(kind, factor, centre):
    options = {"num_layers": 2, "bidirectional": True} if kind in SEQUENCES else {}
    module = normalized(kind, centre=centre, **options)
    before = run(module)
    weights = [p for name, p in module.named_parameters() if name.startswith(("weight_ih", "weight_hh"))]
    assert len(weights) == (8 if kind in SEQUENCES else 2)
    for weight in weights:
        weight.data.mul_(factor)
        assert_close(run(module), before, rtol=0, atol=1e-9)


@each_kind
def test_weight_gradients_scale_as_one_over_the_weight(kind):
    """∇f(cW) = ∇f(W)/c, for each weight by itself."""
    module = normalized(kind)
    weights = {n: p for n, p in module.named_parameters() if n.startswith(("weight_ih", "weight_hh"))}
    before = torch.autograd.grad(run(module).square().sum(), list(weights.values()))
    for parameter, gradient in zip(weights.values(), before, strict=True):
        parameter.data.mul_(3.0)
        (after,) = torch.autograd.grad(run(module).square().sum(), parameter)
        parameter.data.div_(3.0)
        assert gradient.norm() > 1e-6
        torch.testing.assert_close(3.0 * after, gradient, rtol=1e-9, atol=1e-12)


def test_the_pre_activations_are_normalised_over_all_gates():
    cell = normalized("GRUCell")
    seen = []
    for norm in (cell.norm_ih, cell.norm_hh):
        norm.bias.data.zero_()
        norm.register_forward_hook(lambda module, args, out: seen.append(out))
    cell(tokens(BATCH, INPUT), tokens(BATCH, HIDDEN, seed=2))
    for out in seen:
        assert out.shape == (BATCH, 3 * HIDDEN)
        assert_close(out.mean(-1), torch.zeros(BATCH, dtype=torch.float64), **EXACT)
        assert_close(out.square().mean(-1), torch.ones(BATCH, dtype=torch.float64), rtol=0, atol=1e-2)


@each_sequence
def test_a_later_step_changes_nothing_before_it(kind):
    module = normalized(kind, num_layers=2)
    x = tokens(TIME, BATCH, INPUT)
    later = x.clone()
    later[3] += 10
    before, after = module(x)[0], module(later)[0]
    assert torch.equal(before[:3], after[:3])
    assert not torch.allclose(before[3], after[3])


@each_sequence
def test_another_sequence_of_the_batch_changes_nothing(kind):
    module = normalized(kind, num_layers=2, bidirectional=True)
    x = tokens(TIME, BATCH, INPUT)
    other = x.clone()
    other[:, 1] += 10
    before, after = module(x)[0], module(other)[0]
    assert torch.equal(before[:, [0, 2]], after[:, [0, 2]])
    assert not torch.allclose(before[:, 1], after[:, 1])


@each_sequence
def test_a_packed_batch_is_each_sequence_alone(kind):
    module = normalized(kind, num_layers=2, bidirectional=True)
    ragged = [tokens(length, INPUT, seed=length) for length in (2, 5, 1, 5, 3)]
    out, last = module(pack_sequence(ragged, enforce_sorted=False))
    last = last if isinstance(last, tuple) else (last,)
    for i, (x, together) in enumerate(zip(ragged, unpack_sequence(out), strict=True)):
        alone, state = module(x)
        state = state if isinstance(state, tuple) else (state,)
        assert_close(together, alone, **EXACT)
        for s, t in zip(last, state, strict=True):
            assert_close(s[:, i], t, **EXACT)


@each_cell
def test_the_cell_in_a_loop_is_the_sequence(kind):
    cell, module = normalized(kind), normalized(kind.replace("Cell", ""))
    cell.load_state_dict({name.replace("_l0", ""): value for name, value in module.state_dict().items()})
    state = None
    for x, expected in zip(tokens(TIME, BATCH, INPUT), run(module), strict=True):
        state = cell(x, state)
        assert_close(state[0] if kind == "LSTMCell" else state, expected, **EXACT)


@each_kind
def test_gradients_are_right(kind):
    module = normalized(kind, eps=1e-5)  # a relative eps counts as a constant
    names, values = zip(*module.named_parameters(), strict=True)

    def function(*parameters: Tensor) -> Tensor:
        given = dict(zip(names, parameters, strict=True))
        if kind in CELLS:
            h = tokens(1, HIDDEN, seed=2)
            state = (h, h) if kind == "LSTMCell" else h
            out = torch.func.functional_call(module, given, (tokens(1, INPUT), state))
        else:
            out = torch.func.functional_call(module, given, (tokens(2, 1, INPUT),))
        return out[0]

    assert torch.autograd.gradcheck(function, values)


@each_kind
def test_it_learns_and_keeps_no_unused_parameter(kind):
    module = normalized(kind)
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-2)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = (run(module) - 0.3).square().mean()
        loss.backward()
        assert all(p.grad is not None and p.grad.norm() > 0 for p in module.parameters())
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


@each_kind
def test_biases_move_into_the_offsets(kind):
    module = plain(kind)
    biases = {name: value.clone() for name, value in module.state_dict().items() if "bias" in name}
    normalize_recurrent_(module)
    assert not module.bias
    assert len(biases) == 2
    for name, value in biases.items():
        assert name not in module.state_dict()
        assert torch.equal(module.state_dict()[name.replace("bias", "norm") + ".bias"], value)


@each_kind
def test_affine_parts_are_there_only_when_asked_for(kind):
    module, twin = plain(kind), plain(kind, bias=False)
    normalize_recurrent_(module, scale=False, offset=False)
    assert list(module.state_dict()) == list(twin.state_dict())
    assert torch.isfinite(run(module)).all()


@each_kind
def test_conversion_keeps_the_object_its_weights_and_its_mode(kind):
    module = plain(kind).eval()
    kept = {name: p for name, p in module.named_parameters() if "weight" in name}
    normalize_recurrent_(module)
    assert type(module).__name__ == f"Normalized{type(plain(kind)).__name__}"
    assert isinstance(module, type(plain(kind)))
    assert all(getattr(module, name) is p for name, p in kept.items())
    assert not any(child.training for child in module.children())
    assert {p.dtype for p in module.parameters()} == {torch.float64}


@each_kind
def test_copies_pickles_and_state_dicts_are_the_same_net(kind):
    module = normalized(kind)
    expected = run(module)
    loaded = normalized(kind, seed=7)
    loaded.load_state_dict(module.state_dict())
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module)), loaded):
        assert type(other) is type(module)
        assert torch.equal(run(other), expected)
        assert next(other.float().parameters()).dtype == torch.float32


@each_kind
def test_a_reset_net_starts_with_identity_affine_parts(kind):
    module = normalized(kind)
    before = copy.deepcopy(module.state_dict())
    module.reset_parameters()
    for name, value in module.state_dict().items():
        if name.startswith("norm"):
            assert torch.equal(value, torch.full_like(value, float(name.endswith("weight"))))
        else:
            assert not torch.equal(value, before[name])


@each_kind
def test_bfloat16_autocast_stays_near_float32(kind):
    module = normalized(kind).float()
    lengths = () if kind in CELLS else (5, 3)
    ragged = [tokens(length, INPUT, seed=length).float() for length in lengths]
    x = pack_sequence(ragged) if ragged else tokens(BATCH, INPUT).float()
    exact = module(x)
    with torch.autocast("cpu", torch.bfloat16):
        rough = module(x)
    exact, rough = (out[0] if isinstance(out, tuple) else out for out in (exact, rough))
    exact, rough = (out.data if ragged else out for out in (exact, rough))
    assert not torch.equal(rough, exact)
    assert_close(rough.float(), exact, rtol=0, atol=0.05)


@each_cell
def test_a_compiled_cell_without_graph_breaks_agrees(kind):
    cell = normalized(kind)
    expected = run(cell)
    cell.compile(fullgraph=True, backend="aot_eager")
    assert_close(run(cell), expected, **EXACT)


class OwnForward(nn.GRU):
    def forward(self, input, hx=None):
        return input, hx


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (OwnForward(INPUT, HIDDEN), "OwnForward is not a plain"),
        (nn.Linear(INPUT, HIDDEN), "Linear is not a plain"),
        (normalized("LSTM"), "already"),
        (nn.RNN(INPUT, 1), "one unit"),
        (nn.RNNCell(INPUT, 1), "one unit"),
    ],
)
def test_refusals_say_why_and_touch_nothing(module, reason):
    before = (type(module), list(module.state_dict()))
    with pytest.raises(ValueError, match=reason):
        normalize_recurrent_(module)
    assert (type(module), list(module.state_dict())) == before


@each_cell
def test_a_cell_refuses_a_state_of_another_batch(kind):
    cell, h = normalized(kind), tokens(1, HIDDEN)
    with pytest.raises(ValueError, match="state of shape"):
        cell(tokens(BATCH, INPUT), (h, h) if kind == "LSTMCell" else h)


@each_sequence
def test_a_sequence_refuses_a_state_of_another_batch(kind):
    module = normalized(kind)
    with pytest.raises(RuntimeError, match="hidden"):
        module(tokens(TIME, BATCH, INPUT), first_state(module, 1))


def test_weights_of_zero_give_finite_outputs_and_gradients():
    module = normalized("LSTM")
    module.weight_hh_l0.data.zero_()
    out = run(module)
    out.sum().backward()
    assert torch.isfinite(out).all()
    assert all(torch.isfinite(p.grad).all() for p in module.parameters())


def test_every_class_of_torch_has_its_normalized_twin():
    for original, twin in recurrent.NORMALIZED.items():
        assert issubclass(twin, original)
        assert getattr(recurrent, f"Normalized{original.__name__}") is twin
