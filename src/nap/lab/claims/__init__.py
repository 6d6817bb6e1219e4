"""The claims of the paper, tested on stored rows: effect, 95 % interval over seeds, verdict.

    results = evaluate(read("results")["results/fig1-demo"])      # [(claim, evidence), ...]
    print(table(results))

Needs numpy alone, so verdicts can be had wherever the rows are.
"""

from nap.lab.claims.claim import Claim, Evidence, Region, Verdict
from nap.lab.claims.folders import command, read
from nap.lab.claims.verdicts import Result, evaluate, table, to_json

__all__ = [
    "Claim",
    "Evidence",
    "Region",
    "Result",
    "Verdict",
    "command",
    "evaluate",
    "read",
    "table",
    "to_json",
]
