"""Ensembles whose parameters are stacked for `torch.vmap`."""

import copy

import pytest
import torch
from torch import nn
from torch.func import functional_call

import nap
from nap.norms.members import MemberNorm
from zoo.unfamiliar_shared import TorchFunc
from zoo.written import Written, mlp

X = torch.linspace(-1, 1, 18, dtype=torch.float64).reshape(3, 6)


def members(count: int = 3) -> list[nn.Module]:
    torch.manual_seed(0)
    return [mlp(6, 8, 2).double() for _ in range(count)]


def test_each_member_computes_what_it_would_alone():
    nets = members()
    ensemble = TorchFunc(nets)
    nap.normalize_(ensemble, X)
    for net in nets:
        nap.normalize_(net, X)
    torch.testing.assert_close(ensemble(X), torch.stack([net(X) for net in nets]), rtol=1e-12, atol=1e-12)


def test_members_have_scales_offsets_and_radii_of_their_own():
    ensemble = TorchFunc(members())
    nap.normalize_(ensemble, X)
    (norm,) = [m for m in ensemble.modules() if isinstance(m, MemberNorm)]
    scale = norm.get_parameter("weight")
    assert scale.shape == norm.get_parameter("bias").shape == (3, 8)
    optimizer = torch.optim.SGD(ensemble.parameters(), lr=0.1)
    projector = nap.Projector(ensemble).attach(optimizer)
    before = ensemble.params[0].detach().flatten(1).norm(dim=1)
    for _ in range(3):
        optimizer.zero_grad()
        (ensemble(X) ** 2).sum().backward()
        optimizer.step()
    after = ensemble.params[0].detach().flatten(1).norm(dim=1)
    torch.testing.assert_close(after, before)
    assert len(scale.detach().unique(dim=0)) == 3
    assert nap.verify(ensemble, X).worst_change < 1e-9
    assert projector.plan


def test_a_plan_of_an_ensemble_is_saved_and_applied():
    ensemble, other = TorchFunc(members()), TorchFunc(members())
    plan = nap.Plan.from_json(nap.plan(ensemble, X).to_json())
    nap.normalize_(other, plan)
    nap.normalize_(ensemble, X)
    assert torch.equal(ensemble(X), other(X))
    assert torch.equal(copy.deepcopy(other)(X), other(X))


def test_chunks_and_one_random_number_for_each_member():
    def forward(net, x):
        def one(w, v):
            return torch.dropout(torch.relu(x @ w), 0.5, net.training) @ v

        return torch.vmap(one, randomness="different", chunk_size=net.chunk)(net.w, net.v)

    net = Written(
        forward, w=nn.Parameter(torch.randn(4, 6, 8)), v=nn.Parameter(torch.randn(4, 8, 2)), chunk=3
    )
    nap.normalize_(net, X.float())
    assert net.train()(X.float()).shape == (4, 3, 2)
    (norm,) = [m for m in net.eval().modules() if isinstance(m, MemberNorm)]
    with torch.no_grad():
        norm.get_parameter("weight").mul_(torch.arange(1.0, 5.0)[:, None])
    chunked = net(X.float())
    vars(net)["chunk"] = None
    torch.testing.assert_close(chunked, net(X.float()))
    assert nap.coverage(net, X.float()).open[0].name == "v"


def test_a_skeleton_that_is_a_part_of_the_model():
    class Ensemble(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.ParameterDict(
                {
                    n.replace(".", "_"): torch.stack(
                        [dict(m.named_parameters())[n] for m in members()]
                    ).detach()
                    for n, _ in mlp(6, 8, 2).named_parameters()
                }
            )
            self.skeleton = mlp(6, 8, 2).double().requires_grad_(False)

        def forward(self, x):
            names = {n.replace(".", "_"): n for n, _ in self.skeleton.named_parameters()}
            stacked = {names[n]: p for n, p in self.w.items()}
            return torch.vmap(lambda p: functional_call(self.skeleton, p, (x,)))(stacked)

    ensemble = Ensemble()
    plan = nap.normalize_(ensemble, X)
    nets = members()
    for net in nets:
        nap.normalize_(net, X)
    torch.testing.assert_close(ensemble(X), torch.stack([net(X) for net in nets]), rtol=1e-12, atol=1e-12)
    assert [note.name for note in plan.left_alone] == ["skeleton"]
    assert nap.verify(ensemble, X).scale_invariant == 1


def test_members_of_members_are_refused_with_a_way_out():
    def forward(net, x):
        return torch.vmap(torch.vmap(lambda w, v: torch.tanh(x @ w) @ v))(net.w, net.v)

    net = Written(forward, w=nn.Parameter(torch.randn(2, 3, 6, 8)), v=nn.Parameter(torch.randn(2, 3, 8, 2)))
    with pytest.raises(ValueError, match=r"several ways.*allow=\['w'\]"):
        nap.normalize_(net, X.float())
    nap.normalize_(net, X.float(), allow=["w"])
    assert nap.weight_groups(net)["w"].role == "un-normalised"


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # the compiler's, at a graph break
def test_an_ensemble_compiles():
    net = Written(
        lambda net, x: torch.vmap(lambda w, v: torch.relu(x @ w) @ v)(net.w, net.v),
        w=nn.Parameter(torch.randn(4, 6, 8)),
        v=nn.Parameter(torch.randn(4, 8, 2)),
    )
    nap.normalize_(net, X.float())
    torch.testing.assert_close(torch.compile(net, backend="eager")(X.float()), net(X.float()))
