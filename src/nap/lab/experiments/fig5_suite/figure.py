"""Figure 5, right, as a table: human-normalised scores over all games, aggregated in four ways.

Figure 3 draws the same rows.
"""

from __future__ import annotations

import numpy as np

from nap.lab.experiments.common.rainbow.figure import STYLES
from nap.lab.metrics.aggregate import AGGREGATES, stratified_interval
from nap.lab.metrics.atari57 import ATARI57, human_normalised
from nap.lab.report.markup import Html, element, join
from nap.lab.report.markup import table as html_table
from nap.lab.report.style import styles_for
from nap.lab.rows import Rows

LAST = 0.1  # of training, over which scores are averaged


def table(rows: Rows) -> Html | None:
    """The table, if there are games with human scores that every agent has played."""
    rows = rows.where(kind=None)
    arms = list(styles_for(STYLES, rows.unique("arm")))
    scores = {arm: final_scores(rows.where(arm=arm)) for arm in arms}
    games = [game for game in ATARI57 if arms and all(game in scores[arm] for arm in arms)]
    if not games:
        return None
    body = []
    for arm in arms:
        seeds = min(len(scores[arm][game]) for game in games)
        matrix = np.stack([scores[arm][game][:seeds] for game in games], 1)
        body.append([arm, *(_cell(matrix, name) for name in AGGREGATES)])
    head = ["agent", *AGGREGATES]
    caption = (
        f"Human-normalised scores in the last tenth of training, over {len(games)} games; in brackets 95 % "
        "of stratified bootstrap draws over seeds. Of the optimality gap less is better."
    )
    label = "scores over all games"
    return join(html_table(head, body, label=label, class_="wide"), element("p", caption, class_="quiet"))


def final_scores(rows: Rows) -> dict[str, np.ndarray]:
    """For each game with human scores the normalised final score of each seed that has one."""
    found = {}
    for game in rows.unique("game"):
        values, _, frames = rows.where(game=game).matrix("score", by=("seed", "frames"))
        if game not in ATARI57 or not frames:
            continue
        late = values[:, np.array(frames) > (1 - LAST) * frames[-1]]
        ended = ~np.isnan(late).all(1)
        if ended.any():
            found[game] = human_normalised(game, np.nanmean(late[ended], 1))
    return found


def _cell(matrix: np.ndarray, name: str) -> str:
    aggregate = AGGREGATES[name]
    if len(matrix) < 2:
        return f"{100 * float(aggregate(matrix)):.1f} %"
    low, high = stratified_interval(matrix, aggregate, generator=np.random.default_rng(0))
    return f"{100 * float(aggregate(matrix)):.1f} % [{100 * low:.1f}, {100 * high:.1f}]"
