"""Parameters that multiply features entry by entry: weights, not biases, where a sum over them follows."""

import pytest
import torch
from torch import nn

import nap
from zoo import unfamiliar_graphs
from zoo.written import Written, mlp

X = torch.linspace(-1, 1, 18).sin().reshape(3, 6)
PER = ("tensor", "row")


def test_vectors_of_attention_are_no_biases():
    for entry in unfamiliar_graphs.FAMILY[:2]:
        model, args, kwargs = entry.build()
        nap.normalize_(model, args, kwargs)
        roles = {row.role for row in nap.weight_groups(model).values() if row.name.startswith("att")}
        assert roles == {nap.Role.UNNORMALISED}
        nap.verify(model, args, kwargs)


def test_a_plan_names_what_stays_unnormalised():
    model, args, kwargs = unfamiliar_graphs.FAMILY[0].build()
    plan = nap.plan(model, args, kwargs)
    rough = {row.name for row in plan.weights.values() if row.role is nap.Role.UNNORMALISED}
    assert rough
    assert rough <= {note.name for note in plan.left_alone}


def test_scores_of_one_feature_that_a_layer_makes_of_another_layers_result_are_left_alone():
    def attend(net, x):
        h = net.layer(x)
        scores = nn.functional.leaky_relu(h @ net.source + (h @ net.target).T)
        return net.head(nn.functional.elu(scores.softmax(-1) @ h))

    vectors = {name: nn.Parameter(torch.randn(5, 1)) for name in ("source", "target")}
    model = Written(attend, layer=nn.Linear(6, 5), head=nn.Linear(5, 2), **vectors)
    plan = nap.normalize_(model, X)
    assert [p.module for p in plan.placements] == ["layer"]
    assert {note.name for note in plan.left_alone} == {"source", "target"}
    nap.verify(model, X)


@pytest.mark.parametrize(
    ("forward", "shape", "role"),
    [
        (lambda net, x: (net.body(x) * net.w).sum(-1), (4,), nap.Role.OUTPUT),
        (lambda net, x: net.body(x) @ net.w, (4,), nap.Role.OUTPUT),
        (lambda net, x: ((net.body(x) * net.w).mean(dim=1)).tanh() * x[:, 0], (4,), nap.Role.UNNORMALISED),
        (lambda net, x: net.body(x)[:, None] * net.w, (5, 4), nap.Role.OUTPUT),
        (lambda net, x: net.body(x * net.w.exp()), (3, 6), nap.Role.BIAS),  # a scale by its logarithm
        (lambda net, x: net.body(x) * net.w, (4,), nap.Role.BIAS),  # a gain
        (lambda net, x: (net.body(x) * net.w).sum(0), (4,), nap.Role.BIAS),
        (lambda net, x: net.body(x)[:, None] * net.w[:, :1], (5, 1), nap.Role.BIAS),
    ],
)
def test_a_sum_over_its_entries_makes_a_parameter_a_weight(forward, shape, role):
    torch.manual_seed(0)
    model = Written(forward, body=mlp(6, 8, 4), w=nn.Parameter(torch.randn(shape)))
    nap.normalize_(model, X)
    assert nap.weight_groups(model)["w"].role is role
    nap.verify(model, X)


@pytest.mark.parametrize("per", PER)
def test_a_vector_is_one_row(per):
    torch.manual_seed(0)
    model = Written(lambda net, x: net.body(x) @ net.w, body=mlp(6, 8, 4), w=nn.Parameter(torch.randn(4)))
    nap.normalize_(model, X)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    nap.Projector(model, per=per).attach(optimizer)
    before = model.get_parameter("w").detach().clone()
    model(X).square().sum().backward()
    optimizer.step()
    after = model.get_parameter("w").detach()
    assert not torch.allclose(after.abs(), before.abs())
    torch.testing.assert_close(after.norm(), before.norm())


IMAGE = torch.linspace(-1, 1, 2 * 6).reshape(2, 6)


def modulated(net, z):
    """A learned image, convolved with weights that are made for each sample, as StyleGAN2 has it."""
    weight = net.w * (1 + net.style(z))[:, None, :, None, None]
    image = net.image.expand(2, -1, -1, -1).reshape(1, 12, 4, 4)
    out = nn.functional.conv2d(image, weight.flatten(0, 1), padding=1, groups=2).view(2, 6, 4, 4)
    return net.head(nn.functional.leaky_relu(out).mean((2, 3)))


def convolved(net, z):
    return net.head((net.conv(net.image) * net.style(z)[..., None, None]).relu().mean((2, 3)))


def sampled(net, z):
    grid = z[None, :, None, :2]
    return net.head(
        nn.functional.grid_sample(net.image, grid, align_corners=True).flatten(1).view(-1, 6).exp()
    )


@pytest.mark.parametrize(
    ("forward", "role"),
    [
        (modulated, nap.Role.UNNORMALISED),
        (convolved, nap.Role.NORMALISED),
        (sampled, nap.Role.EMBEDDING),
    ],
)
def test_an_image_that_the_model_learns_is_no_bias(forward, role):
    torch.manual_seed(0)
    image, w = nn.Parameter(torch.randn(1, 6, 4, 4)), nn.Parameter(torch.randn(6, 6, 3, 3))
    layers = {"style": nn.Linear(6, 6), "conv": nn.Conv2d(6, 6, 3), "head": nn.Linear(6, 2)}
    model = Written(forward, image=image, w=w, **layers)
    nap.normalize_(model, IMAGE)
    assert nap.weight_groups(model)["image"].role is role


@pytest.mark.parametrize("start", [torch.ones, torch.zeros, torch.randn])
def test_a_matrix_that_multiplies_features_is_a_weight_wherever_it_starts(start):
    model = Written(
        lambda net, x: net.head((net.body(x)[:, None] * net.w).tanh().mean(1)),
        body=nn.Linear(6, 4), head=nn.Linear(4, 2), w=nn.Parameter(start(5, 4)),
    )  # fmt: skip
    plan = nap.normalize_(model, X)
    assert plan.weights["w"].role is nap.Role.UNNORMALISED
    assert "w" in {note.name for note in plan.left_alone}
    nap.verify(model, X)


def test_learned_tokens_are_a_table_and_positions_that_are_added_a_bias():
    def forward(net, x):
        h = torch.cat([net.tokens.expand(len(x), -1, -1), net.body(x)], 1) + net.positions
        return net.head(nn.functional.layer_norm(h, (4,)))

    tables = {"tokens": nn.Parameter(torch.randn(2, 4)), "positions": nn.Parameter(torch.randn(7, 4))}
    model = Written(forward, body=nn.Linear(6, 4), head=nn.Linear(4, 2), **tables)
    weights = nap.plan(model, torch.randn(3, 5, 6)).weights
    assert weights["tokens"].role is nap.Role.EMBEDDING
    assert weights["positions"].role is nap.Role.BIAS
    assert weights["positions"].reason == "added, as biases and positions are"
