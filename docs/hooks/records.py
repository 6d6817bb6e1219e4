"""The records in evidence/: a small file for each run, which says what was run, how, and what came out.

`evidence/NAME.toml` stands beside the rows, `evidence/NAME.tar.xz`; a demo, which anyone can run again in
minutes, has a record alone. Pages, the table in PAPER.md and tests read records with `records()`.

    python docs/hooks/records.py                 # write the table in PAPER.md anew
    python docs/hooks/records.py fig4-small      # draft the record of new rows, from their manifests
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
    """A run, or runs that belong together: what was run, and what came out."""

    name: str  # of the file, without its ending
    experiments: tuple[str, ...]  # whose claims are decided on its rows
    scale: str
    setting: str  # what is particular about it, in words
    seeds: int
    date: date  # of the first run
    device: str
    commands: tuple[str, ...]
    commits: tuple[str, ...] = ()
    torch: tuple[str, ...] = ()
    duration: str = ""
    note: str = ""
    verdicts: tuple[int, int, int] | None = None  # claims that hold, fail, are open; None: none is decided
    superseded_by: str = ""
    because: str = ""
    page: str = ""  # with its findings; "" for that of its experiment

    def __post_init__(self) -> None:
        if self.scale not in SCALES or not {*self.experiments} <= {*MODULES}:
            raise ValueError(
                f"{self.name}.toml: unknown scale {self.scale!r} or experiment {self.experiments}"
            )
        if bool(self.superseded_by) != bool(self.because):
            raise ValueError(f"{self.name}.toml: superseded_by and because come together")

    @property
    def archive(self) -> Path | None:
        """The rows, where there are any."""
        path = EVIDENCE / f"{self.name}.tar.xz"
        return path if path.exists() else None

    @property
    def current(self) -> bool:
        """It decides claims, and nothing has superseded it."""
        return self.verdicts is not None and not self.superseded_by

    @property
    def findings(self) -> Path:
        """The page that says what was found."""
        return ROOT / (self.page or f"docs/reproduce/{self.experiments[0]}.md")

    @property
    def counted(self) -> str:
        """Holds / fails / open."""
        return " / ".join(map(str, self.verdicts or ()))


@cache
def records() -> tuple[Record, ...]:
    """Every record, by experiment, scale and date."""
    found = [read_record(path) for path in EVIDENCE.glob("*.toml")]
    return tuple(sorted(found, key=lambda r: (r.experiments[0], SCALES.index(r.scale), r.date, r.name)))


def read_record(path: Path) -> Record:
    """The record in a file; a key that a record does not have is an error."""
    entries = tomllib.loads(path.read_text("utf-8"))
    if unknown := entries.keys() - {field.name for field in fields(Record)}:
        raise ValueError(f"{path.name}: a record has no {', '.join(sorted(unknown))}")
    if verdicts := entries.get("verdicts"):
        entries["verdicts"] = (verdicts["hold"], verdicts["fail"], verdicts["open"])
    lists = {key: tuple(value) for key, value in entries.items() if isinstance(value, list)}
    return Record(path.name.removesuffix(".toml"), **(entries | lists))


@contextmanager
def unpacked(archive: Path) -> Iterator[Path]:
    """A folder with what an archive holds, for as long as it is needed."""
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(archive) as packed:
            packed.extractall(folder, filter="data")
        yield Path(folder)


def decide(archive: Path) -> tuple[int, int, int]:
    """How many claims hold, fail and are open on the rows of an archive, by today's claims."""
    with unpacked(archive) as folder:
        (rows,) = read(folder).values()
        count = Counter(str(evidence.verdict) for _, evidence in evaluate(rows))
    return count["holds"], count["fails"], count["open"]


def verdict_table(home: Path = ROOT) -> str:
    """All verdicts in two tables, with links as seen from a page in `home`."""

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
    """A record for rows that have none yet; what no manifest knows is left to be written."""
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
        "setting": "TO BE WRITTEN: what is particular about it",
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
    parser.add_argument("name", nargs="?", help="rows in evidence/ that have no record yet")
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
