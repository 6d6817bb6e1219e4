"""Data sets that are not here are named together, before a folder appears."""

from __future__ import annotations

from pathlib import Path

import pytest

from nap.lab.cli.main import main
from nap.lab.datasets.store import DataMissing, require


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NAP_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


def test_all_of_them_are_named_at_once() -> None:
    with pytest.raises(DataMissing, match=r"^cifar10, text8 and piqa are not in .*fetch cifar10 text8 piqa$"):
        require([{"settings": {"data": "cifar10"}}, {"text": ["text8"], "eval_sets": ["piqa", "mine=x"]}])


def test_what_is_here_or_of_no_catalogue_is_not_asked_for(data: Path) -> None:
    (data / "text8").mkdir(parents=True)
    (data / "text8" / "text8").touch()  # whether it is whole, its reader says
    require([{"data": "digits", "text": ("python", "text8", "a/file.txt"), "tokenizer": "bytes"}])


@pytest.mark.parametrize("command", ["run", "sweep", "tune"])
def test_no_folder_is_made(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "results"
    assert main([command, "fig4", "--scale", "small", "--out", str(out)]) == 2
    assert "cifar10 is not in" in capsys.readouterr().err
    assert not out.exists()
