"""The plot of a baseline: both files, the same bytes for the same data, every line of every panel."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import baseline, compare, plot
from benchmarks.tests import synthetic


@pytest.fixture
def committed(tmp_path: Path) -> Path:
    run = synthetic.write(tmp_path, "run", synthetic.report(0))
    compare.main([str(run), "--adopt", "--baselines", str(tmp_path)])
    return tmp_path / "nvidia-h200" / "baseline.json"


def test_png_and_svg_are_written_and_repeat(committed: Path, tmp_path: Path) -> None:
    plot.main([str(committed), "--into", str(tmp_path)])
    names = ("performance-nvidia-h200.png", "performance-nvidia-h200.svg")
    first = [(tmp_path / name).read_bytes() for name in names]
    plot.main([str(committed), "--into", str(tmp_path)])
    assert [(tmp_path / name).read_bytes() for name in names] == first
    assert first[0].startswith(b"\x89PNG")
    text = first[1].decode()
    for words in ("FP8", "MXFP4", "a plain cast of q", "cute + Hadamard", "triton", "NVIDIA H200", "torch 2.11.0"):
        assert words in text, words
    assert "Date" not in text


def test_a_baseline_reads_back_as_it_was_written(committed: Path, tmp_path: Path) -> None:
    runs = baseline.load(committed)
    assert baseline.load(baseline.save(runs, tmp_path / "again")) == runs


def test_no_baseline_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(baseline, "FOLDER", tmp_path)
    with pytest.raises(SystemExit, match="2"):
        plot.main([])
    assert "There is no baseline" in capsys.readouterr().err
