"""A run is a folder that can be killed at any moment: it resumes, and ends with the same rows.

with RunFolder.open(path, experiment="fig1", scale="demo", run="nap", config=config) as folder:
    outcome = carry_out(work, folder, device=device)
"""

from .carry import FINISHED, STOPPED, Outcome, carry_out
from .checkpoint import Damaged
from .folder import RunFolder
from .lock import FolderInUse
from .work import NotFinite, Work

__all__ = [
    "FINISHED",
    "STOPPED",
    "Damaged",
    "FolderInUse",
    "NotFinite",
    "Outcome",
    "RunFolder",
    "Work",
    "carry_out",
]
