"""Records of runs: evidence/NAME.toml holds the settings, commands and verdicts of a run.

The run's rows are in evidence/NAME.tar.xz. A demo has no archive, since it runs in minutes. The pages, the
table in PAPER.md and the tests read records with `records()`.

    python docs/hooks/records.py                 # update the table in PAPER.md
    python docs/hooks/records.py fig4-small      # draft a record from the manifests of new rows
"""

from __future__ import annotations

import argparse
import json
import os
import re
import tarfile
import tempfile
import tomllib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from datetime import date
from functools import cache
from pathlib import Path

from nap.lab.claims import evaluate, read
from nap.lab.experiments import MODULES

ROOT = Path(__file__).resolve().parents[2]
EVIDENCE = ROOT / "evidence"
SCALES = ("demo", "small", "paper")
TABLE = re.compile(r"(?<=<!-- verdicts, from evidence/\*\.toml -->\n).*?(?=<!-- end of verdicts -->)", re.S)


@dataclass(frozen=True)
class Record:
    """Settings and verdicts of one run, or of several that share an archive."""

    name: str  # of the file, without .toml
    experiments: tuple[str, ...]  # whose claims its rows decide
    scale: str
    setting: str  # how it differs from other runs of the experiment
    seeds: int
    date: date  # of the first run
    device: str
    commands: tuple[str, ...]
    commits: tuple[str, ...] = ()
    torch: tuple[str, ...] = ()
    duration: str = ""
    note: str = ""
    verdicts: tuple[int, int, int] | None = None  # claims that hold, fail, are open; None if it decides none
    superseded_by: str = ""
    because: str = ""
    page: str = ""  # of its findings; "" for the page of its experiment

    def __post_init__(self) -> None:
        if self.scale not in SCALES or not {*self.experiments} <= {*MODULES}:
            raise ValueError(
                f"{self.name}.toml: unknown scale {self.scale!r} or experiment {self.experiments}"
            )
        if bool(self.superseded_by) != bool(self.because):
            raise ValueError(f"{self.name}.toml: superseded_by and because come together")

    @property
    def archive(self) -> Path | None:
        """The archive of rows; None without one."""
        path = EVIDENCE / f"{self.name}.tar.xz"
        return path if path.exists() else None

    @property
    def current(self) -> bool:
        """Whether it decides claims and no other record supersedes it."""
        return self.verdicts is not None and not self.superseded_by

    @property
    def findings(self) -> Path:
        """The page of its findings."""
        return ROOT / (self.page or f"docs/reproduce/{self.experiments[0]}.md")

    @property
    def counted(self) -> str:
        """Its verdicts as "hold / fail / open"."""
        return " / ".join(map(str, self.verdicts or ()))


@cache
def records() -> tuple[Record, ...]:
    """Every record, by experiment, scale and date."""
    found = [read_record(path) for path in EVIDENCE.glob("*.toml")]
    return tuple(sorted(found, key=lambda r: (r.experiments[0], SCALES.index(r.scale), r.date, r.name)))


def read_record(path: Path) -> Record:
    """The record in a file; an unknown key is an error."""
    entries = tomllib.loads(path.read_text("utf-8"))
    if unknown := entries.keys() - {field.name for field in fields(Record)}:
        raise ValueError(f"{path.name}: a record has no {', '.join(sorted(unknown))}")
    if verdicts := entries.get("verdicts"):
        entries["verdicts"] = (verdicts["hold"], verdicts["fail"], verdicts["open"])
    lists = {key: tuple(value) for key, value in entries.items() if isinstance(value, list)}
    return Record(path.name.removesuffix(".toml"), **(entries | lists))


@contextmanager
def unpacked(archive: Path) -> Iterator[Path]:
    """A temporary folder with the content of an archive."""
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(archive) as packed:
            packed.extractall(folder, filter="data")
        yield Path(folder)


def decide(archive: Path) -> tuple[int, int, int]:
    """Numbers of today's claims that hold, fail and are open on the rows of an archive."""
    with unpacked(archive) as folder:
        (rows,) = read(folder).values()
        count = Counter(str(evidence.verdict) for _, evidence in evaluate(rows))
    return count["holds"], count["fails"], count["open"]


def verdict_table(home: Path = ROOT) -> str:
    """Tables of current and superseded verdicts, with links relative to `home`."""

    def link(record: Record) -> str:
        return f"[{record.name}]({os.path.relpath(record.findings, home)})"

    lines = [
        "| Run | Setting | Seeds | Date | Hold / fail / open |",
        "|---|---|---|---|---|",
        *(
            f"| {link(record)} | {record.setting} | {record.seeds} | {record.date} | {record.counted} |"
            for record in records()
            if record.current
        ),
        "",
        "Superseded:",
        "",
        "| Run | By | Because | Hold / fail / open |",
        "|---|---|---|---|",
        *(
            f"| {link(record)} | {record.superseded_by} | {record.because} | {record.counted} |"
            for record in records()
            if record.superseded_by
        ),
    ]
    return "\n".join(lines) + "\n"


def draft(name: str) -> str:
    """A draft record from manifests, with placeholders for what they do not contain."""
    archive = EVIDENCE / f"{name}.tar.xz"
    with unpacked(archive) as folder:
        manifests = [json.loads(path.read_text("utf-8")) for path in folder.rglob("manifest.json")]
    hold, fail, undecided = decide(archive)

    def all_of(*keys: str) -> list[str]:
        found = set()
        for manifest in manifests:
            value = manifest
            for key in keys:
                value = value.get(key) or {}
            found |= {value} if isinstance(value, str) and value != "unknown" else set()
        return sorted(found)

    entries = {
        "experiments": all_of("experiment"),
        "scale": all_of("scale")[0],
        "setting": "TO BE WRITTEN: how it differs from other runs",
        "seeds": max(int(manifest.get("seeds") or 1) for manifest in manifests),
        "device": ", ".join(all_of("device")),
        "commits": all_of("commit"),
        "torch": all_of("versions", "torch"),
        "commands": ["TO BE WRITTEN: nap run …"],
    }
    lines = [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in entries.items()]
    lines.insert(4, f"date = {min(all_of('started'))[:10]}")
    return "\n".join([*lines, f"verdicts = {{hold = {hold}, fail = {fail}, open = {undecided}}}"]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description="The table of verdicts in PAPER.md, and drafts of records.")
    parser.add_argument("name", nargs="?", help="archive in evidence/ without a record")
    name = parser.parse_args().name
    path = ROOT / "PAPER.md" if name is None else EVIDENCE / f"{name}.toml"
    if name is None:
        table = verdict_table()
        path.write_text(TABLE.sub(lambda _: f"\n{table}\n", path.read_text("utf-8")), "utf-8")
    elif path.exists():
        parser.error(f"{path.relative_to(ROOT)} is there already; edit it")
    else:
        path.write_text(draft(name), "utf-8")
    print(f"wrote {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
