"""Table 1, right: does NaP get in the way of a language model, or help it? (§5.2)"""

from __future__ import annotations

from nap.lab.experiments.experiment import Experiment, Tuning
from nap.lab.experiments.table1_language.config import DEMO, PAPER, SETS, SMALL

EXPERIMENT = Experiment(
    name="table1-language",
    order=17,
    package=__name__,
    title="a language model with and without NaP, on texts and questions (Table 1, right)",
    shows="NaP does not get in the way of a language model; on other texts and on questions it is slightly "
    "better than the baseline and than norms alone.",
    scales={"demo": DEMO, "small": SMALL, "paper": PAPER},
    needs={
        "demo": "",
        "small": "text8, c4-sample, " + ", ".join(SETS),
        "paper": "gpt-neox-tokenizer, " + ", ".join(SETS),
    },
    tuning=Tuning(metric="valid_loss", rates=(2e-3, 4e-3, 8e-3), goal="lowest", over="last"),
)
