"""Claims about Rainbow on made-up rows: holding, failing and undecided, and what a score is."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache

import numpy as np
import pytest

import synthetic_rainbow_rows as made_up
from nap.lab.claims import Claim, Evidence, Region, Verdict, evaluate, to_json
from nap.lab.claims.claim import NotEnough
from nap.lab.claims.effects import decide
from nap.lab.claims.samples import RESUMABLE, UNFINISHED, Samples, Series
from nap.lab.experiments import experiments
from nap.lab.experiments.common.rainbow.claims import FINAL, FIRST, Scores, scores
from nap.lab.experiments.fig3.claims import at_least, gain, sharp_rise
from nap.lab.experiments.fig6.claims import time_to_reach
from nap.lab.rows import Rows
from synthetic_rainbow_rows import FRAMES, GAMES, SEEDS, WORLDS, Row

RAINBOW_CLAIMS = [
    claim for each in experiments().values() for claim in each.claims if claim.experiment in WORLDS
]
Thin = Callable[[Row], Row | None]


def verdicts(rows: Iterable[Row]) -> dict[str, Evidence]:
    return {claim.id: evidence for claim, evidence in evaluate(Rows(rows))}


@cache
def world(experiment: str, as_told: bool) -> dict[str, Evidence]:
    return verdicts(WORLDS[experiment](as_told))


def by_id(claim: Claim) -> str:
    return claim.id


def test_every_experiment_has_claims() -> None:
    assert {claim.experiment for claim in RAINBOW_CLAIMS} == set(WORLDS)


@pytest.mark.parametrize("claim", RAINBOW_CLAIMS, ids=by_id)
def test_holds_in_the_papers_world(claim: Claim) -> None:
    found = world(claim.experiment, True)[claim.id]
    assert found.verdict is Verdict.HOLDS, found.sentence
    assert found.seeds == SEEDS
    assert found.low is not None
    assert found.low <= found.effect <= found.high  # type: ignore[operator]


@pytest.mark.parametrize("claim", RAINBOW_CLAIMS, ids=by_id)
def test_fails_in_the_opposite_world(claim: Claim) -> None:
    found = world(claim.experiment, False)[claim.id]
    assert found.verdict is Verdict.FAILS, found.sentence


@cache
def disagreeing(experiment: str) -> dict[str, Evidence]:
    """Some seeds live in the one world and some in the other: few, and in as few games as claims take."""
    world: Callable[..., Iterable[Row]] = WORLDS[experiment]
    told = [row for row in world(True, games=GAMES[:2]) if row["seed"] < 2]
    return verdicts([*told, *(row for row in world(False, games=GAMES[:2]) if row["seed"] in (2, 3))])


@pytest.mark.parametrize("claim", RAINBOW_CLAIMS, ids=by_id)
def test_seeds_that_disagree_decide_nothing(claim: Claim) -> None:
    found = disagreeing(claim.experiment)[claim.id]
    assert found.verdict is Verdict.OPEN, found.sentence
    assert "crosses the limit" in found.reason


def two_seeds(row: Row) -> Row | None:
    return row if row["seed"] < 2 else None


def just_begun(row: Row) -> Row | None:
    frames = row["frames_in_game"] if "frames_in_game" in row else row["frames"]
    return row if frames <= FRAMES * 0.15 else None


def other_arms(row: Row) -> Row | None:
    return row | {"arm": f"another {row['arm']}"}


def unfinished(row: Row) -> Row | None:
    return row | {UNFINISHED: RESUMABLE, "run": "the-run"}


def no_episodes(row: Row) -> Row | None:
    return row | {"score": None}


THIN: dict[str, tuple[Thin, str]] = {
    "two seeds": (two_seeds, "2 seeds of at least 3"),
    "just begun": (just_begun, "too few"),
    "other arms": (other_arms, "no rows of"),
    "unfinished": (unfinished, "the-run is not finished"),
    "no episodes": (no_episodes, "too few frames for an episode to end"),
}


@pytest.mark.parametrize("thin", THIN)
@pytest.mark.parametrize("experiment", WORLDS)
def test_says_what_is_missing(experiment: str, thin: str) -> None:
    change, message = THIN[thin]
    rows = [kept for row in WORLDS[experiment](True) if (kept := change(row)) is not None]
    for name, evidence in verdicts(rows).items():
        assert evidence.verdict is Verdict.OPEN, f"{name}: {evidence.sentence}"
        assert message in evidence.reason, name


@pytest.mark.parametrize("as_told", [True, False])
@pytest.mark.parametrize("games", [("catch", "catch-mirrored"), ("catch", "pong")])
@pytest.mark.parametrize("experiment", WORLDS)
def test_games_that_no_human_played_count_too(experiment: str, games: tuple[str, ...], as_told: bool) -> None:
    everything = verdicts(WORLDS[experiment](as_told, games=games))  # type: ignore[call-arg]
    found = {name: e for name, e in everything.items() if name.startswith(f"{experiment}.")}
    expected = Verdict.HOLDS if as_told else Verdict.FAILS
    assert [e.sentence for e in found.values() if e.verdict is not expected] == []
    assert any("range" in e.unit for e in found.values())


def test_without_human_scores_the_scale_is_the_range_that_all_agents_span() -> None:
    rows = [
        row | {"score": {"NaP": 3.0, "LayerNorm": 7.0}.get(row["arm"], -1.0)}
        for row in made_up.fig3(True, games=("catch",))
        if "score" in row
    ]
    found = scores(Samples(Rows(rows)), "NaP", "LayerNorm")
    np.testing.assert_allclose(found.during(FINAL)[:, :, 0], [[50, 100]] * SEEDS)
    assert found.unit == "% of the range of scores"


def test_with_human_scores_the_scale_is_theirs() -> None:
    rows = [
        row | {"score": -20.7 + 35.3 / 2} for row in made_up.fig3(True, games=("pong",)) if "score" in row
    ]
    found = scores(Samples(Rows(rows)), "NaP")
    np.testing.assert_allclose(found.during(FINAL), 50)
    assert found.unit == "% of a human's score"


def test_a_game_whose_score_never_changes_shows_nothing() -> None:
    rows = [row | {"score": 1.0} for row in made_up.suite(True, games=("catch",)) if "score" in row]
    assert (
        "no agent ever changes its score in catch" in verdicts(rows)["fig5-suite.layernorm-improves"].reason
    )


def test_rows_in_which_no_episode_ended_are_passed_over() -> None:
    rows = [row | ({"score": None} if row["frames"] % 500_000 else {}) for row in made_up.fig6(True)]
    assert {e.verdict for e in verdicts(rows).values()} == {Verdict.HOLDS}


def without_episodes(arm: str, seed: int, first: float, last: float) -> list[Row]:
    """One agent plays Pong on and on between two parts of its run: no episode ends."""

    def silent(row: Row) -> bool:
        agent = (row["arm"], row["game"], row["seed"]) == (arm, "pong", seed)
        return agent and first * FRAMES < row["frames"] <= last * FRAMES

    return [row | ({"score": None} if silent(row) else {}) for row in made_up.suite(True)]


def test_a_part_of_a_run_without_an_episode_has_the_score_of_the_episodes_before() -> None:
    rows = without_episodes("NaP", 3, 0.9, 1)
    found, full = (scores(Samples(Rows(of)), "NaP") for of in (rows, made_up.suite(True)))
    pong, seed = full.games.index("pong"), 3
    row_before = full.curves["NaP", "pong"].values[seed][
        np.array(full.curves["NaP", "pong"].points) <= 0.9 * FRAMES
    ][-1]
    changed = found.during(FINAL) != full.during(FINAL)
    assert np.argwhere(changed).tolist() == [[seed, 0, pong]]
    assert found.during(FINAL)[seed, 0, pong] == row_before


def test_a_start_without_an_episode_has_the_score_of_the_first_to_end() -> None:
    rows = without_episodes("NaP", 3, 0, 0.2)
    found = scores(Samples(Rows(rows)), "NaP")
    curve = found.curves["NaP", "pong"].values[3]
    assert found.during(FIRST)[3, 0, found.games.index("pong")] == curve[np.isfinite(curve)][0]


def test_an_agent_that_never_ended_an_episode_is_named() -> None:
    found = verdicts(without_episodes("NaP", 3, 0, 1))
    assert found["fig5-suite.constant-rate-worse"].reason == "NaP in pong, seed 3: no episode ended"
    assert found["fig5-suite.layernorm-improves"].verdict is Verdict.HOLDS


def test_a_game_that_was_only_tried_does_not_count() -> None:
    """As in the demo: an emulator runs for too few frames for an episode to end, in any arm."""
    tried = [
        row | {"score": None} for row in made_up.fig3(True, games=("qbert",)) if row["frames"] < FRAMES / 5
    ]
    assert verdicts([*made_up.fig3(True), *tried]) == world("fig3", True)


def test_a_game_that_an_arm_lacks_is_named() -> None:
    rows = [row for row in made_up.suite(True) if (row["arm"], row["game"]) != ("NaP", "pong")]
    reason = verdicts(rows)["fig5-suite.schedule-best-iqm"].reason
    assert reason == "there are no rows of arm “NaP”, game “pong”"


def test_an_agent_that_stopped_on_the_way_is_named() -> None:
    rows = [row for row in made_up.suite(True) if row["arm"] != "NaP" or row["frames"] <= FRAMES / 2]
    reason = verdicts(rows)["fig5-suite.schedule-best-iqm"].reason
    assert "arm “NaP”, game “breakout” stops at frames 2500000 of 5000000" in reason


def test_a_sequence_that_stopped_before_the_second_visit_is_named() -> None:
    rows = [row for row in made_up.sequential(True) if (row["arm"], row["cycle"]) != ("NaP", 2)]
    reason = verdicts(rows)["fig5-sequential.nap-as-good-as-fresh"].reason
    assert "no rows of arm “NaP”, cycle “2”" in reason


def test_a_fresh_agents_rows_need_not_tell_frames_in_game() -> None:
    def alone(row: Row) -> Row:
        if row["arm"] != "fresh Rainbow":
            return row
        return {key: value for key, value in row.items() if key != "frames_in_game"} | {
            "frames": row["frames_in_game"]
        }

    assert verdicts(map(alone, made_up.sequential(True))) == world("fig5-sequential", True)


def test_the_first_visit_does_not_count() -> None:
    rows = [row | ({"score": 1e4} if "score" in row else {}) for row in made_up.sequential(True)]
    second = [
        row if old["cycle"] == 1 and old["arm"] != "fresh Rainbow" else old
        for row, old in zip(rows, made_up.sequential(True), strict=True)
    ]
    assert verdicts(second) == world("fig5-sequential", True)


def test_rows_of_layers_do_not_count() -> None:
    rows = [row for row in made_up.fig3(True) if row.get("kind") is None]
    assert verdicts(rows) == world("fig3", True)


def test_a_network_is_not_measured_before_its_first_update() -> None:
    names = ("parameter_norm", "effective_rate")
    rows = [
        {key: value for key, value in row.items() if row["frames"] > FRAMES / 10 or key not in names}
        for row in made_up.fig3(True)
    ]
    assert {e.verdict for e in verdicts(rows).values()} == {Verdict.HOLDS}


def test_one_game_with_a_huge_score_does_not_decide() -> None:
    """It makes the mean, and not the interquartile mean."""

    def huge(row: Row) -> Row:
        spiked = (row["arm"], row["game"]) == ("Rainbow", "breakout") and "score" in row
        return row | ({"score": 1e5} if spiked else {})

    games = ("asterix", "breakout", "pong", "qbert", "seaquest")
    found = verdicts(map(huge, made_up.suite(True, games=games)))
    assert found["fig5-suite.schedule-best-iqm"].verdict is Verdict.HOLDS
    assert found["fig5-suite.schedule-best-mean"].verdict is Verdict.FAILS


def test_nor_does_it_decide_between_schedules() -> None:
    def huge(row: Row) -> Row:
        spiked = (row["arm"], row["game"]) == ("LayerNorm", "breakout") and "score" in row
        return row | ({"score": 1e5} if spiked else {})

    games = ("asterix", "breakout", "pong", "qbert", "seaquest")
    found = verdicts(map(huge, made_up.fig3(True, games=games)))
    assert found["fig3.schedule-closes-gap"].verdict is Verdict.HOLDS


def test_arms_are_compared_on_the_seeds_that_they_share() -> None:
    rows = [row for row in made_up.suite(True) if row["game"] != "pong" or row["seed"] < 4]
    assert verdicts(rows)["fig5-suite.layernorm-improves"].seeds == 4


def test_the_order_of_rows_does_not_matter() -> None:
    rows = list(made_up.fig6(True))
    shuffled = [rows[i] for i in np.random.default_rng(0).permutation(len(rows))]
    assert to_json(evaluate(Rows(rows))) == to_json(evaluate(Rows(shuffled)))


def test_who_hardly_learns_is_no_reference() -> None:
    def nothing(row: Row) -> Row:
        learnt = row["arm"] not in ("LayerNorm", "fresh Rainbow") or "score" not in row
        return row if learnt else row | {"score": made_up.raw(row["game"], 0.001)}

    found = verdicts(map(nothing, [*made_up.fig3(True), *made_up.sequential(True)]))
    assert "LayerNorm hardly learns: it scores 0.1 %" in found["fig3.schedule-closes-gap"].reason
    assert "0 of at least 1 game" in found["fig3.constant-rate-may-stall"].reason
    assert "fresh Rainbow hardly learns" in found["fig5-sequential.nap-as-good-as-fresh"].reason
    assert "learns none of the games" in found["fig5-sequential.rainbow-poor"].reason


def test_where_nobody_learns_there_is_nothing_to_see() -> None:
    def flat(row: Row) -> Row:
        return row | ({"score": made_up.raw(row["game"], 0.01)} if "score" in row else {})

    found = verdicts(map(flat, [*made_up.fig3(True), *made_up.fig6(True)]))
    assert "0 of at least 2 games" in found["fig3.schedule-late-jump"].reason
    assert "NaP, ends at 0.25 hardly learns" in found["fig6.fast-plateaus"].reason
    assert "NaP, ends at 1 hardly learns" in found["fig6.whole-run-picks-up"].reason
    assert "in no game do all four" in found["fig6.curves-shift"].reason


def test_less_far_below_random_play_is_no_success() -> None:
    levels = {"LayerNorm": -0.5, "NaP + schedule": -0.495}
    rows = [
        row | {"score": made_up.raw(row["game"], levels.get(row["arm"], 0.0))}
        for row in made_up.fig3(True)
        if "score" in row
    ]
    assert verdicts(rows)["fig3.schedule-outperforms"].verdict is Verdict.FAILS


def case(value: float, spread: float = 0.01) -> Evidence:
    return decide("gain", value + spread * np.arange(-2.0, 3.0), Region(low=0), unit="points")


def test_several_games_are_enough() -> None:
    good, better, unsure, bad = case(1), case(2), case(0.5, 1), case(-1)
    found = at_least(2, {"a": bad, "b": better, "c": unsure, "d": good})
    assert found.verdict is Verdict.HOLDS
    assert found.effect == pytest.approx(1)
    assert "holds in 2 of 4 games, 2 required; here “d”" in found.quantity
    assert list(found.cases) == ["a", "b", "c", "d"]
    assert at_least(2, {"a": bad, "b": better, "c": unsure}).verdict is Verdict.OPEN
    assert at_least(2, {"a": bad, "b": better, "c": bad}).verdict is Verdict.FAILS
    with pytest.raises(NotEnough, match=r"too few games .* 1 of at least 2 games"):
        at_least(2, {"a": good})


def test_a_sharp_rise_is_half_again_a_straight_line() -> None:
    start, end, points = (0.35, 0.45), (0.55, 0.65), 20
    time = np.arange(1, points + 1) / points

    def share(curve: np.ndarray) -> float:
        series = Series(curve[None], [0], list(range(1, points + 1)))
        found = Scores({("NaP", "pong"): series}, ["NaP"], ["pong"])
        return float((gain(found, start, end) / gain(found, FIRST, FINAL))[0, 0])

    assert sharp_rise(start, end) == pytest.approx(1 / 3)
    assert share(time) == pytest.approx(sharp_rise(start, end) / 1.5)
    assert share(1 - np.exp(-10 * time)) < sharp_rise(start, end) < share(np.clip(3 * time - 1, 0, 1))


def test_a_score_that_is_never_reached_counts_as_reached_at_the_end() -> None:
    curve = Series(
        np.array([[0.0, 1.0, 0.0, 1.0], [0.0, np.nan, 0.0, 1.0], [0.0] * 4]), [0, 1, 2], [1, 2, 3, 4]
    )
    np.testing.assert_array_equal(time_to_reach(curve, 0.5), [0.5, 1.0, 1.0])
    np.testing.assert_array_equal(time_to_reach(curve, 0.0), 0.25)


@pytest.mark.parametrize("delay", [1.0, 0.4, 0.0])
def test_a_shift_is_measured_against_that_of_the_schedule(delay: float) -> None:
    """Every curve is one step, later by `delay` times what its schedule ends later."""

    def step(row: Row) -> Row:
        reached = row["frames"] / FRAMES > 0.2 + delay * (row["end_at"] - 0.25) - 1e-9
        return row | {"score": made_up.raw(row["game"], float(reached))}

    found = verdicts(step(row) for row in made_up.fig6(True) if "score" in row)["fig6.curves-shift"]
    assert found.effect == pytest.approx(100 * delay)
    assert found.verdict is (Verdict.HOLDS if delay else Verdict.FAILS)


def test_a_noisy_layer_is_judged_by_means_and_noise_together() -> None:
    """Its noise has rows of its own, which decide nothing."""
    noise = [
        row | {"layer": "noise", "noise_of": "hidden", "norm": 3.0, "effective_rate": 1e-4}
        for row in made_up.minatar(True)
        if row.get("layer") == "hidden"
    ]
    found = verdicts([*made_up.minatar(True), *noise])["minatar.layernorm-layer-norms"]
    assert found.verdict is Verdict.HOLDS
    assert set(found.cases) == {"conv1", "hidden"}
    assert found.cases["hidden"].effect == pytest.approx(found.cases["conv1"].effect)


def test_one_layer_that_does_not_grow_fails_the_claim_on_all() -> None:
    rows = [row | ({"norm": 3.0} if row.get("layer") == "conv1" else {}) for row in made_up.minatar(True)]
    found = verdicts(rows)["minatar.layernorm-layer-norms"]
    assert found.verdict is Verdict.FAILS
    assert "least for “conv1”" in found.quantity


def test_an_agent_that_is_better_where_it_should_be_the_same_fails() -> None:
    better = [
        row
        | ({"score": 2 * row["score"]} if row["arm"] == "NaP, projected rarely" and "score" in row else {})
        for row in made_up.ablations(True)
    ]
    assert verdicts(better)["ablations.rare-projection-same"].verdict is Verdict.FAILS
