"""What Figures 3, 5 and 6 show of Atari, asked of MinAtar: the same claims on rows of smaller games."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from nap.lab.claims import fig3, fig5_sequential, fig5_suite, fig6, layers
from nap.lab.claims.claim import Claim


def moved(claims: Iterable[Claim], experiment: str) -> tuple[Claim, ...]:
    """These claims about another experiment; of two with one name the first."""
    found: dict[str, Claim] = {}
    for claim in claims:
        name = f"{experiment}.{claim.id.partition('.')[2]}"
        found.setdefault(name, replace(claim, id=name, where=f"{claim.where}; of Atari", reads=""))
    return tuple(found.values())


CLAIMS = (
    *moved((*fig3.CLAIMS, *fig5_suite.CLAIMS), "minatar"),
    *layers.claims("minatar"),
    *moved(fig6.CLAIMS, "minatar-ends"),
    *moved(fig5_sequential.CLAIMS, "minatar-sequential"),
)
