"""Policies by role: which weights are the output, tables and ends of branches, and what becomes of them."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel
from torch.testing import assert_close

import nap
from nap.conversion.placement import Plan
from nap.inspection import describe
from nap.projection.sphere import project_tensors_
from nap.weights import PLAN_ATTRIBUTE, Role, Weight, WeightTable
from stream_nets import TOKENS, WIDTH, Branch, agent, language, learn

BRANCHES = ["c.0.two.weight", "c.1.two.weight"]


def ends(model: nn.Module, *args: Any) -> list[str]:
    """The weights that are found to end a residual branch."""
    table = nap.plan(model, args).weights
    return [row.name for row in table.values() if row.place == "branch"]


@pytest.mark.parametrize("form", ["pre", "post", "swapped", "in place", "scaled"])
@pytest.mark.parametrize("zero", [True, False])
def test_the_last_matrix_of_a_branch_is_found_however_the_sum_is_written(form: str, zero: bool) -> None:
    branch = Branch(form=form)
    if zero:
        nn.init.zeros_(branch.two.weight)
    net = nn.Sequential(
        nn.Linear(5, WIDTH), branch, Branch(form=form), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3)
    )
    assert ends(net, torch.randn(2, 5)) == ["1.two.weight", "2.two.weight"]


def test_attention_ends_with_its_output_projection() -> None:
    layers = [
        nn.TransformerEncoderLayer(8, 2, 16, norm_first=first, batch_first=True) for first in (True, False)
    ]
    net = nn.Sequential(nn.Linear(5, 8), *layers, nn.LayerNorm(8), nn.Linear(8, 3))
    found = [f"{i}.{name}.weight" for i in (1, 2) for name in ("self_attn.out_proj", "linear2")]
    assert ends(net, torch.randn(2, 4, 5)) == found


class Sums(nn.Module):
    """Sums that are no residual stream: of two inputs, and of a shortcut with what goes beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.short, self.long = (nn.Linear(8, 8) for _ in range(4))
        self.norm, self.norm2, self.head = nn.LayerNorm(8), nn.LayerNorm(8), nn.Linear(8, 2)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = self.norm(self.left(x) + self.right(y))
        return self.head(self.norm2(self.short(x) + self.long(torch.relu(x))))


def test_other_sums_have_no_branches() -> None:
    assert ends(Sums(), torch.randn(2, 8), torch.randn(2, 8)) == []


def test_a_language_model_by_default() -> None:
    plan = nap.Projector(language()).plan
    assert plan.names("free") >= ["a.weight", "b.weight"]
    assert "e.weight" in plan.names("free")
    assert plan.names("grow") == BRANCHES
    assert plan.names("project") == ["c.0.one.weight", "c.1.one.weight"]
    radii = {row.name: row.radius for row in plan.rows}
    assert radii["c.0.two.weight"] == pytest.approx(WIDTH**0.5)  # entries of 1/√fan_in
    assert "starts at 0.02 of its fan-in radius, free up to there" in str(plan)
    assert plan.advice == ()
    tied = nap.Projector(language(tied=True)).plan
    assert "a.weight" in tied.names("free")
    assert tied.rows[0].role is Role.OUTPUT


def test_branches_of_full_size_and_an_agent_are_projected_by_default() -> None:
    assert nap.Projector(language(std=0.4, share=1.0)).plan.names("grow") == []
    plan = nap.Projector(agent()).plan
    assert plan.names("project") == ["0.weight", "1.one.weight", "1.two.weight", "3.weight"]
    assert nap.Projector(agent(gain=0.01)).plan.names("grow") == ["3.weight"]


@pytest.mark.parametrize("choice", ["project", "grow", "free"])
def test_each_policy_can_be_chosen(choice: Any) -> None:
    model = language()
    plan = nap.Projector(model, output=choice, embeddings=choice, branches=choice).plan
    assert set(plan.names(choice)) >= {"a.weight", "b.weight", "e.weight", *BRANCHES}
    assert bool(plan.advice) is (choice == "project")


def test_the_advice_names_what_is_pinned_small_and_the_ways_out() -> None:
    model = language(tied=True)
    output, branches = nap.Projector(model, output="project", branches="project").plan.advice
    assert output.startswith("a.weight: pinned at")
    assert "output='free'" in output
    assert "gains=" in output
    assert branches.startswith("c.0.two.weight, c.1.two.weight: pinned at")
    assert "branches='grow'" in branches
    found = describe(language(tied=True), TOKENS, projector={"branches": "project"})
    assert "c.0.two.weight, c.1.two.weight: pinned at" in str(found)
    assert found.to_json()["advice"] == list(found.advice)


def test_below_its_ceiling_a_weight_moves_as_without_a_projector() -> None:
    with_, without = language(share=0.0), language(share=0.0)
    optimizers = [torch.optim.Adam(net.parameters(), lr=1e-3) for net in (with_, without)]
    nap.Projector(with_, exclude=["c.0.one", "c.1.one"]).attach(optimizers[0])
    for net, optimizer in zip((with_, without), optimizers, strict=True):
        learn(net, optimizer, 5)
    assert_close(with_.state_dict(), without.state_dict(), rtol=0, atol=0)
    assert with_.c[0].two.weight.any()


def test_a_branch_of_zeros_grows_to_its_fan_in_radius_and_not_beyond() -> None:
    model = language(share=0.0)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.2)
    projector = nap.Projector(model).attach(optimizer)
    assert projector.norm_ratios()["c.0.two.weight"] == 0
    first = learn(model, optimizer)
    after_one = projector.norm_ratios()["c.0.two.weight"]
    last = learn(model, optimizer, 100)
    assert 0 < after_one < 0.9
    assert last < first / 2
    assert all(projector.norm_ratios()[name] == pytest.approx(1) for name in BRANCHES)


def test_any_weight_of_zeros_is_free_until_it_has_its_fan_in_radius() -> None:
    experts: Any = nn.Module()
    experts.register_parameter("experts", nn.Parameter(torch.stack([torch.zeros(4, 9), torch.ones(4, 9)])))
    table = WeightTable({"experts": Weight("experts", Role.SCALE_INVARIANT, stacked=1, out_axis=1)})
    setattr(experts, PLAN_ATTRIBUTE, Plan(weights=table))
    projector = nap.Projector(experts)
    assert projector.plan.names("grow") == ["experts"]
    assert "all zeros" in str(projector.plan)
    experts.experts.data.mul_(2).add_(1)
    projector.project_()
    assert experts.experts.data.flatten(1).norm(dim=1).tolist() == pytest.approx([2.0, 6.0])


def test_a_ceiling_shortens_and_never_lengthens() -> None:
    weights = [torch.tensor([[3.0, 4.0]]), torch.tensor([[0.3, 0.4]]), torch.zeros(1, 2), torch.ones(2, 2)]
    radii = [torch.tensor([[1.0]])] * 3 + [torch.tensor([[1.0], [9.0]])]
    project_tensors_(weights, radii, ceiling=True)
    assert_close(weights[0], torch.tensor([[0.6, 0.8]]))
    assert weights[1].tolist() == torch.tensor([[0.3, 0.4]]).tolist()
    assert not weights[2].any()
    assert_close(weights[3], torch.tensor([[0.5**0.5] * 2, [1.0] * 2]))


def trained(model: Any, **options: Any) -> tuple[torch.optim.Optimizer, nap.Projector]:
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
    return optimizer, nap.Projector(model, **options).attach(optimizer)


def test_a_resumed_run_goes_on_growing_though_the_weights_are_large_by_then() -> None:
    model = language(share=0.0)
    optimizer, projector = trained(model)
    learn(model, optimizer, 40)
    late = copy.deepcopy(model)
    resumed, again = trained(late)  # its plan is made from trained weights
    assert again.plan.names("grow") == []
    again.load_state_dict(projector.state_dict())
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert again.plan.names("grow") == BRANCHES
    assert again.updates == projector.updates
    for net, which in ((model, optimizer), (late, resumed)):
        learn(net, which, 10, seed=1)
    assert_close(late.state_dict(), model.state_dict(), rtol=0, atol=0)


def old_state(projector: nap.Projector) -> dict[str, Any]:
    """As it was written before there were policies of tables and branches."""
    state = projector.state_dict()
    state["settings"] = {k: v for k, v in state["settings"].items() if k not in ("embeddings", "branches")}
    assert state["settings"]["output"] == "project"
    return state


def test_a_state_of_before_the_policies_loads_and_the_run_goes_on_as_it_was_begun() -> None:
    model = language()
    kept = {"output": "project", "embeddings": "project", "branches": "project"}
    optimizer, projector = trained(model, **kept)
    learn(model, optimizer, 3)
    late = copy.deepcopy(model)
    resumed, again = trained(late)
    again.load_state_dict(old_state(projector))
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert again.plan.names("project") == projector.plan.names("project")
    assert "as the run was begun" in str(again.plan)
    for net, which in ((model, optimizer), (late, resumed)):
        learn(net, which, 3, seed=1)
    assert_close(late.state_dict(), model.state_dict(), rtol=0, atol=0)


def test_a_state_with_another_policy_than_the_chosen_one_is_refused_and_nothing_changes() -> None:
    model = language()
    _, free = trained(model, branches="free", output="project")
    for options, words in (
        ({"branches": "project"}, r"actions\.c\.0\.two\.weight: free in the state, project here"),
        ({"output": "free"}, "settings.output: project in the state, free here"),
    ):
        _, other = trained(language(), **options)
        before = str(other.plan)
        with pytest.raises(ValueError, match=words):
            other.load_state_dict(free.state_dict())
        assert str(other.plan) == before


def test_what_the_caller_says_is_not_taken_over() -> None:
    _, begun = trained(language())  # its branches grow
    _, pinned = trained(language(), branches="project")
    with pytest.raises(ValueError, match=r"actions\.c\.0\.two\.weight: grow in the state, project here"):
        pinned.load_state_dict(begun.state_dict())
    _, apart = trained(language(), exclude=["c.0.two"])
    with pytest.raises(ValueError, match=r"actions\.c\.0\.two\.weight: grow in the state, free here"):
        apart.load_state_dict(begun.state_dict())
    _, zeros = trained(language(share=0.0), branches="project")  # zeros grow all the same
    _, later = trained(language(), branches="project")
    later.load_state_dict(zeros.state_dict())
    assert later.plan.names("grow") == BRANCHES


def test_a_plan_of_step_one_of_before_the_policies_loads() -> None:
    body = json.loads(nap.plan(language(), TOKENS).to_json())
    del body["options"]["gains"]
    for row in body["weights"]:
        del row["place"]
    for row in body["placements"]:
        del row["radius"]
    model = language()
    setattr(model, PLAN_ATTRIBUTE, Plan.from_json(json.dumps(body)))
    assert nap.Projector(model).plan.names("project")[:2] == ["a.weight", "b.weight"]  # as it was then


def test_an_average_of_what_still_grows_stays_as_it_is() -> None:
    model = language()
    projector = nap.Projector(model)
    average: Any = AveragedModel(model)
    average.module.c[0].one.weight.data.mul_(0.5)
    projector.project_(average)
    assert_close(average.module.c[0].one.weight, model.c[0].one.weight)
    assert torch.equal(average.module.c[0].two.weight, model.c[0].two.weight)
