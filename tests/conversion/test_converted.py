"""What a converted model can still do: all that it could before."""

import copy
import importlib
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap
from torch.utils.checkpoint import checkpoint

import nap
from nap.norms.compiling import guard_hooks
from nap.norms.norm import Norm
from small_nets import NETS, NoBias, every_net, mlp


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    torch.manual_seed(0)
    yield
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()


@every_net
def test_it_trains_and_evaluates_at_any_batch_size(build, inputs):
    model = build().train()
    nap.normalize_(model, inputs(2))
    assert model.training
    assert all(m.training for m in model.modules())
    for size in (1, 2, 7):
        out = model.eval()(inputs(size))
        assert len(out) == size
        assert out.isfinite().all()


@every_net
@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam])
def test_twenty_steps_lower_the_loss(build, inputs, optimizer):
    model, x = build(), inputs(16)
    nap.normalize_(model, x)
    target = torch.randn_like(model(x)) * 0.3
    steps = optimizer(model.parameters(), lr=0.05 if optimizer is torch.optim.SGD else 3e-3)
    losses = []
    for _ in range(20):
        loss = F.mse_loss(model(x), target)
        steps.zero_grad()
        loss.backward()
        steps.step()
        losses.append(loss.item())
    assert losses[-1] < 0.9 * losses[0]
    assert all(p.isfinite().all() for p in model.parameters())


@every_net
def test_copies_and_state_dicts_need_no_second_trace(build, inputs):
    model, x = build().eval(), inputs(3)
    plan = nap.normalize_(model, x)
    for parameter in model.parameters():
        parameter.data.add_(0.1 * torch.randn_like(parameter))
    fresh = build().eval()
    nap.normalize_(fresh, nap.Plan.from_json(plan.to_json()))
    fresh.load_state_dict(model.state_dict())
    assert nap.Plan.from_json(plan.to_json()) == plan
    for other in (fresh, copy.deepcopy(model)):
        assert torch.equal(other(x), model(x))
        assert nap.weight_groups(other) == nap.weight_groups(model)


LOAD = """
import pickle, sys, torch
for model, x, expected in pickle.load(open(sys.argv[1], "rb")):
    ran = set()
    handles = [m.register_forward_hook(lambda m, a, o: ran.add(type(m).__name__)) for m in model.modules()]
    handles += [m.register_forward_pre_hook(lambda m, a: None) for m in model.modules()]
    assert torch.equal(model(x), expected), "hooked"
    for handle in handles:
        handle.remove()
    assert torch.equal(model(x), expected), "hooked and freed"
    assert "Norm" in ran, ran
"""


@pytest.mark.slow
def test_a_pickle_loaded_elsewhere_keeps_its_norms_whatever_is_hooked_on(tmp_path):
    file, kept = tmp_path / "models.pickle", []
    for name, (build, inputs) in NETS.items():
        if name != "weight_norm":  # torch pickles no parametrised module
            model, x = build().eval(), inputs(3)
            nap.normalize_(model, x)
            kept.append((model, x, model(x).detach()))
    file.write_bytes(pickle.dumps(kept))
    in_new_process(LOAD, file)


def in_new_process(program: str, file: Path) -> None:
    command = [sys.executable, "-c", program, str(file)]
    paths = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": paths})
    assert done.returncode == 0, done.stderr


@every_net
def test_compiled_without_graph_breaks_it_is_the_same(build, inputs):
    model, x = build().eval(), inputs(3)
    nap.normalize_(model, x)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), model(x), rtol=1e-5, atol=1e-5)


@pytest.fixture
def unguarded() -> Iterator[None]:
    """The compiler as it is in a process in which nap has converted nothing yet."""
    guard_hooks.cache_clear()
    torch._dynamo.reset()
    with torch._dynamo.config.patch(skip_nnmodule_hook_guards=True):
        yield
    guard_hooks.cache_clear()


def compiled(model: nn.Module, x: Tensor) -> Tensor:
    return torch.compile(model, backend="eager")(x)


@pytest.mark.usefixtures("unguarded")
def test_without_guards_the_code_of_a_plain_twin_is_taken_for_the_converted_one(monkeypatch):
    """So the next two tests can fail."""
    for module in ("nap.norms.norm", "nap.conversion.normalize"):
        monkeypatch.setattr(importlib.import_module(module), "guard_hooks", lambda: None)
    plain, model, x = NoBias(), NoBias(), torch.randn(3, 8)
    compiled(plain, x)
    nap.normalize_(model, x)
    assert not torch.allclose(compiled(model, x), model(x))


@pytest.mark.usefixtures("unguarded")
def test_code_compiled_for_a_plain_twin_is_not_taken_for_the_converted_one():
    plain, model, x = NoBias(), NoBias(), torch.randn(3, 8)
    compiled(plain, x)
    nap.normalize_(model, x)
    torch.testing.assert_close(compiled(model, x), model(x))
    torch.testing.assert_close(compiled(plain, x), plain(x))
    nap.normalize_(plain, x)  # what was compiled is converted now
    torch.testing.assert_close(compiled(plain, x), plain(x))


@pytest.mark.usefixtures("unguarded")
def test_nor_for_one_that_comes_out_of_a_file():
    model, x = NoBias(), torch.randn(3, 8)
    nap.normalize_(model, x)
    expected, packed = model(x).detach(), pickle.dumps(model)
    guard_hooks.cache_clear()
    torch._dynamo.config.skip_nnmodule_hook_guards = True
    model = pickle.loads(packed)
    compiled(NoBias(), x)
    torch.testing.assert_close(compiled(model, x), expected)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # what inductor warns of while it is imported is torch's
def test_inductor_agrees_forward_and_backward():
    model, x = mlp(), torch.randn(3, 8)
    nap.normalize_(model, x)
    try:
        torch.compile(model, fullgraph=True)(x).square().sum().backward()
    except torch._inductor.exc.InductorError as error:
        pytest.skip(f"no C++ compiler: {error}")
    found = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    model(x).square().sum().backward()
    torch.testing.assert_close(found, [p.grad for p in model.parameters() if p.grad is not None])


@every_net
def test_half_precision(build, inputs):
    model, x = build(), inputs(3)
    nap.normalize_(model, x)
    with torch.autocast("cpu", torch.bfloat16):
        out = model(x)
    out.float().square().sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
    half = x.bfloat16() if x.is_floating_point() else x
    torch.testing.assert_close(copy.deepcopy(model).bfloat16()(half).float(), model(x), rtol=0.2, atol=0.2)


def test_functional_calls_see_the_weights_that_they_are_given():
    models, x = [mlp() for _ in range(3)], torch.randn(4, 8)
    for model in models:
        nap.normalize_(model, x, eps="relative")
        model[0].weight.data.mul_(1e-4)  # an eps that were stale would show
    stacked, _ = stack_module_state(models)
    together = vmap(lambda p: functional_call(models[0], p, (x,)))(stacked)
    torch.testing.assert_close(together, torch.stack([m(x) for m in models]))


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_inside_and_out(reentrant):
    class Saver(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.body = nn.Linear(8, 8), mlp()

        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(self.body, self.first(x), use_reentrant=reentrant)

    model, x = Saver(), torch.randn(3, 8)
    nap.normalize_(model, x)
    assert isinstance(model.body[0].nap_norm, Norm)
    (expected,) = torch.autograd.grad(model.body(model.first(x)).sum(), [model.body[0].weight])
    model(x).sum().backward()
    torch.testing.assert_close(model.body[0].weight.grad, expected)


def test_a_checkpoint_from_before_the_conversion_revives_no_bias():
    class Transposed(nn.Module):
        """A layer that cannot do without its bias, as those of GPT-2."""

        def __init__(self) -> None:
            super().__init__()
            self.weight, self.bias = nn.Parameter(torch.randn(4, 8)), nn.Parameter(torch.randn(8))

        def forward(self, x: Tensor) -> Tensor:
            return torch.addmm(self.bias, x, self.weight)

    model = nn.Sequential(Transposed(), nn.ReLU(), nn.Linear(8, 2))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    nap.normalize_(model, torch.randn(2, 4))
    model.load_state_dict(before, strict=False)
    assert not model.get_parameter("0.bias").any()
    assert torch.equal(model.get_parameter("0.weight"), before["0.weight"])
    assert nap.verify(model, torch.randn(2, 4)).scale_invariant == 1
