"""The experiment of `nap compare`: a function of the user's, plain, with normalization only, and with NaP."""

from __future__ import annotations

from nap.lab.experiments.compare.config import CompareConfig
from nap.lab.experiments.experiment import Experiment, Tuning

EXPERIMENT = Experiment(
    name="compare",
    package=__name__,
    title="your own training: plain, with normalization only, with NaP",
    shows="Each arm has the learning rate that was best for it on tuning seeds; results are of other seeds.",
    scales={"demo": CompareConfig()},
    datasets={"demo": ""},
    tuning=Tuning(metric="result", rates=(3e-4, 1e-3, 3e-3)),
    named_by_scale=False,
)
