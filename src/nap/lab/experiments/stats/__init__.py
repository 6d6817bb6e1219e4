"""Network statistics over the runs of Figure 4 (Appendix C.2): the same runs, another look at their rows."""

from __future__ import annotations

from dataclasses import replace

from nap.lab.experiments import fig4

EXPERIMENT = replace(
    fig4.EXPERIMENT,
    name="stats",
    order=5,
    package=__name__,
    title="units, rank and norms in the runs of Figure 4 (Appendix C.2)",
    shows="Linearized units, feature rank, parameter and gradient norm of the networks of Figure 4.",
    readers=(),
)
