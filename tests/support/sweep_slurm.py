"""SLURM's commands as far as submitit uses them: jobs are processes of this machine.

    small_slurm(folder)      the folder to put first on PATH

`python tests/support/sweep_slurm.py sbatch FOLDER ...` is one of the commands.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

COMMANDS = ("sbatch", "srun", "scancel", "sacct")


def small_slurm(folder: Path) -> Path:
    """A folder with SLURM's commands; jobs are noted beside it."""
    commands = folder / "bin"
    commands.mkdir(parents=True)
    for name in COMMANDS:
        words = shlex.join([sys.executable, str(Path(__file__).resolve()), name, str(folder)])
        (commands / name).write_text(f'#!/bin/sh\nexec {words} "$@"\n')
        (commands / name).chmod(0o755)
    return commands


def sbatch(folder: Path, script: str) -> None:
    """Begin a job, in a session of its own, and say its number."""
    job = 1 + len(list(folder.glob("*.script")))
    shutil.copy(script, folder / f"{job}.script")
    environment = os.environ | {"SLURM_JOB_ID": str(job), "SLURM_NTASKS": "1", "SLURM_PROCID": "0"}
    with (folder / f"{job}.out").open("w") as out:
        process = subprocess.Popen(
            ["bash", script],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    (folder / f"{job}.pid").write_text(str(process.pid))
    print(f"Submitted batch job {job}")


def srun(folder: Path, *words: str) -> None:
    """Become the command that follows the options, which are --name, or --name value."""
    first = words.index(sys.executable)
    os.execv(words[first], words[first:])


def scancel(folder: Path, job: str) -> None:
    """Ask every process of a job to end, as SLURM does before it kills them."""
    session = int((folder / f"{job}.pid").read_text())
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "environ").read_bytes().split(b"\0")
            if f"SLURM_JOB_ID={job}".encode() in words and int(process.name) != session:
                os.kill(int(process.name), signal.SIGTERM)
        except OSError:  # it has ended
            continue


def sacct(folder: Path, *words: str) -> None:
    """The state of all jobs."""
    print("JobID|State|NodeList")
    for file in folder.glob("*.pid"):
        alive = Path(f"/proc/{file.read_text()}").exists()
        print(f"{file.stem}|{'RUNNING' if alive else 'COMPLETED'}|here")


if __name__ == "__main__":
    globals()[sys.argv[1]](Path(sys.argv[2]), *sys.argv[3:])
