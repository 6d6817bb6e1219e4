"""What random play and a professional tester score in the 57 Atari games, and scores on that scale.

The numbers are those of DQN Zoo (google-deepmind/dqn_zoo, dqn_zoo/atari_data.py), whose agent the paper uses:
raw scores from starts of 1 to 30 no-ops, over at most 30 minutes of play. They go back to Mnih et al. (2015)
and Wang et al. (2016). Games are spelled as `ale_py.roms` spells them.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import NamedTuple, TypeVar

import numpy as np

Score = TypeVar("Score", float, np.ndarray)


class Reference(NamedTuple):
    """Raw scores of a game that stand for 0 and for 1."""

    random: float
    human: float


ATARI57: dict[str, Reference] = {
    "alien": Reference(227.8, 7127.7),
    "amidar": Reference(5.8, 1719.5),
    "assault": Reference(222.4, 742.0),
    "asterix": Reference(210.0, 8503.3),
    "asteroids": Reference(719.1, 47388.7),
    "atlantis": Reference(12850.0, 29028.1),
    "bank_heist": Reference(14.2, 753.1),
    "battle_zone": Reference(2360.0, 37187.5),
    "beam_rider": Reference(363.9, 16926.5),
    "berzerk": Reference(123.7, 2630.4),
    "bowling": Reference(23.1, 160.7),
    "boxing": Reference(0.1, 12.1),
    "breakout": Reference(1.7, 30.5),
    "centipede": Reference(2090.9, 12017.0),
    "chopper_command": Reference(811.0, 7387.8),
    "crazy_climber": Reference(10780.5, 35829.4),
    "defender": Reference(2874.5, 18688.9),
    "demon_attack": Reference(152.1, 1971.0),
    "double_dunk": Reference(-18.6, -16.4),
    "enduro": Reference(0.0, 860.5),
    "fishing_derby": Reference(-91.7, -38.7),
    "freeway": Reference(0.0, 29.6),
    "frostbite": Reference(65.2, 4334.7),
    "gopher": Reference(257.6, 2412.5),
    "gravitar": Reference(173.0, 3351.4),
    "hero": Reference(1027.0, 30826.4),
    "ice_hockey": Reference(-11.2, 0.9),
    "jamesbond": Reference(29.0, 302.8),
    "kangaroo": Reference(52.0, 3035.0),
    "krull": Reference(1598.0, 2665.5),
    "kung_fu_master": Reference(258.5, 22736.3),
    "montezuma_revenge": Reference(0.0, 4753.3),
    "ms_pacman": Reference(307.3, 6951.6),
    "name_this_game": Reference(2292.3, 8049.0),
    "phoenix": Reference(761.4, 7242.6),
    "pitfall": Reference(-229.4, 6463.7),
    "pong": Reference(-20.7, 14.6),
    "private_eye": Reference(24.9, 69571.3),
    "qbert": Reference(163.9, 13455.0),
    "riverraid": Reference(1338.5, 17118.0),
    "road_runner": Reference(11.5, 7845.0),
    "robotank": Reference(2.2, 11.9),
    "seaquest": Reference(68.4, 42054.7),
    "skiing": Reference(-17098.1, -4336.9),
    "solaris": Reference(1236.3, 12326.7),
    "space_invaders": Reference(148.0, 1668.7),
    "star_gunner": Reference(664.0, 10250.0),
    "surround": Reference(-10.0, 6.5),
    "tennis": Reference(-23.8, -8.3),
    "time_pilot": Reference(3568.0, 5229.2),
    "tutankham": Reference(11.4, 167.6),
    "up_n_down": Reference(533.4, 11693.2),
    "venture": Reference(0.0, 1187.5),
    "video_pinball": Reference(16256.9, 17667.9),
    "wizard_of_wor": Reference(563.5, 4756.5),
    "yars_revenge": Reference(3092.9, 54576.9),
    "zaxxon": Reference(32.5, 9173.3),
}


def reference(game: str) -> Reference:
    """What random play and a human score in a game.

    >>> reference("pong")
    Reference(random=-20.7, human=14.6)
    >>> reference("space_invader")
    Traceback (most recent call last):
    ValueError: no human score is known for the game 'space_invader'; did you mean 'space_invaders'?
    """
    if game not in ATARI57:
        spelled = game.lower().replace(" ", "_").replace("-", "_")
        near = get_close_matches(spelled, ATARI57, n=3)
        hint = (
            f"did you mean {' or '.join(map(repr, near))}?" if near else "the 57 that have one are in ATARI57"
        )
        raise ValueError(f"no human score is known for the game {game!r}; {hint}")
    return ATARI57[game]


def human_normalised(game: str, score: Score) -> Score:
    """A raw score, or an array of them, on the scale where random play has 0 and a human 1.

    >>> round(human_normalised("breakout", 30.5), 3), round(human_normalised("pong", -20.7), 3)
    (1.0, 0.0)
    """
    random, human = reference(game)
    return (score - random) / (human - random)
