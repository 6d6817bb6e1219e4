"""Jobs of a sweep, for tests of what does them."""

from __future__ import annotations

import sys
from dataclasses import replace

from nap.lab.cli.main import parse_requests
from nap.lab.launch.jobs import Job, jobs
from nap.lab.launch.options import SweepOptions


def asked(line: str) -> list[Job]:
    """What `nap sweep LINE` has to do."""
    words = line.split()
    first_option = next((i for i, word in enumerate(words) if word.startswith("-")), len(words))
    return jobs(parse_requests(words, SweepOptions), words[first_option:])


def placed(job: Job, code: str) -> Job:
    """The job with its folder there, and Python code instead of a worker."""
    job.path.mkdir(parents=True)
    return replace(job, command=(sys.executable, "-c", code))
