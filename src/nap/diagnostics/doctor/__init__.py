"""Why does this network not learn any more? Likely reasons, each with its measure and what to try.

`diagnose` looks at a live model, its optimizer and a batch; `diagnose_log` at what a monitor has written.
What counts as alarming is a table, `THRESHOLDS`.
"""

from nap.diagnostics.doctor.findings import Diagnosis, Finding
from nap.diagnostics.doctor.live import diagnose
from nap.diagnostics.doctor.logs import diagnose_log
from nap.diagnostics.doctor.thresholds import THRESHOLDS, Threshold

__all__ = ["THRESHOLDS", "Diagnosis", "Finding", "Threshold", "diagnose", "diagnose_log"]
