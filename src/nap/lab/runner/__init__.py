"""A run is a folder that can be killed at any moment: it resumes, and ends with the same rows.

with RunFolder.open(path, experiment="fig1", scale="demo", run="nap", config=config) as folder:
    outcome = run_work(work, folder, device=device)
"""

from nap.lab.runner.checkpoint import Damaged
from nap.lab.runner.folder import RunFolder
from nap.lab.runner.lock import FolderInUse
from nap.lab.runner.run import FINISHED, STOPPED, Outcome, run_work
from nap.lab.runner.work import NotFinite, Work

__all__ = [
    "FINISHED",
    "STOPPED",
    "Damaged",
    "FolderInUse",
    "NotFinite",
    "Outcome",
    "RunFolder",
    "Work",
    "run_work",
]
