"""The gate's rules on synthetic runs: equal code passes twenty times, 1.3x always fails, all else is said plainly."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import baseline, compare, matrix
from benchmarks.tests import synthetic

RUNS_OF_A_BASELINE = 3


@pytest.fixture
def baselines(tmp_path: Path) -> Path:
    """A folder with the baseline of three runs."""
    runs = [synthetic.write(tmp_path, f"base{seed}", synthetic.report(seed)) for seed in range(RUNS_OF_A_BASELINE)]
    folder = tmp_path / "baselines"
    assert compare.main([*map(str, runs), "--adopt", "--baselines", str(folder)]) == 0
    return folder


def gate(baselines: Path, content: Mapping[str, Any]) -> int:
    return compare.main([str(synthetic.write(baselines.parent, "run", content)), "--baselines", str(baselines)])


def test_the_same_code_passes_twenty_times(baselines: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for seed in range(100, 120):
        assert gate(baselines, synthetic.report(seed)) == 0, capsys.readouterr().out


def test_a_slowdown_of_1_3_always_fails(baselines: Path) -> None:
    for seed, case in enumerate(matrix.cases(), start=200):
        run = synthetic.write(
            baselines.parent, "run", synthetic.report(seed, slow={case.id: 1.3}, keep=lambda c, case=case: c == case)
        )
        findings = compare.judge(baseline.from_report(run), baseline.load(baselines / "nvidia-h200" / "baseline.json"))
        assert [finding.case for finding in findings if finding.verdict == "slower"] == [case.id]


def test_one_slow_case_fails_the_run_and_is_named(baselines: Path, capsys: pytest.CaptureFixture[str]) -> None:
    victim = matrix.cases()[17].id
    assert gate(baselines, synthetic.report(300, slow={victim: 1.3})) == 1
    assert f"slower   {victim}: " in capsys.readouterr().out


def test_a_slowdown_of_every_short_case_fails(baselines: Path) -> None:
    assert (
        gate(baselines, synthetic.report(301, slow={case.id: 1.3 for case in matrix.cases() if case.gate == "us"})) == 1
    )


def test_a_missing_baseline_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert gate(tmp_path / "none", synthetic.report(0)) == 2
    assert "there is no baseline under" in capsys.readouterr().out


def test_a_changed_gpu_is_said(baselines: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert gate(baselines, synthetic.report(0, gpu={"name": "NVIDIA B200"})) == 2
    text = capsys.readouterr().out
    assert "the GPU changed: this run is of nvidia-b200; baselines are there for nvidia-h200" in text


def test_a_run_without_a_gpu_is_said(baselines: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert gate(baselines, synthetic.report(0, gpu=None, keep=lambda case: False)) == 2
    assert "this run had no GPU" in capsys.readouterr().out


def test_a_vanished_case_fails(baselines: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gone = matrix.cases()[3].id
    assert gate(baselines, synthetic.report(400, keep=lambda case: case.id != gone)) == 1
    assert f"vanished {gone}: " in capsys.readouterr().out


def test_a_chosen_subset_is_no_vanishing(baselines: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert gate(baselines, synthetic.report(401, selection="quick", keep=lambda case: case.quick)) == 0
    quick = sum(case.quick for case in matrix.cases())
    assert f"{len(matrix.cases()) - quick} not run" in capsys.readouterr().out


def test_a_new_case_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fresh, folder = matrix.cases()[5].id, tmp_path / "baselines"
    old = synthetic.write(tmp_path, "old", synthetic.report(0, keep=lambda case: case.id != fresh))
    compare.main([str(old), "--adopt", "--baselines", str(folder)])
    assert gate(folder, synthetic.report(1)) in (0, 1)
    assert f"new      {fresh}: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "actual"),
    [
        (None, "No such file or directory"),
        ("not json", "no JSON"),
        ("{}", "JSON without 'benchmarks'"),
        ("[]", "JSON of another kind"),
        ('{"benchmarks": [], "machine_info": {"node": "here"}}', "JSON without 'gpu'"),
        ('{"benchmarks": [null], "machine_info": {}}', "JSON of another kind"),
    ],
)
@pytest.mark.parametrize("adopt", [False, True])
def test_what_is_no_report_is_said(
    content: str | None, actual: str, adopt: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, folder = tmp_path / "run.json", tmp_path / "baselines"
    if content is not None:
        path.write_text(content)
    assert compare.main([str(path), "--baselines", str(folder), *(["--adopt"] if adopt else [])]) == 2
    verb = "adopted" if adopt else "compared"
    expected = f"Nothing was {verb}: {path}: expected a report of the benchmarks, got {actual}. Remedy: "
    assert capsys.readouterr().out.startswith(expected)
    assert not folder.exists()


def test_runs_of_different_gpus_are_no_baseline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ("NVIDIA H200", "NVIDIA B200")
    paths = [synthetic.write(tmp_path, name, synthetic.report(0, gpu={"name": name})) for name in names]
    assert compare.main([*map(str, paths), "--adopt", "--baselines", str(tmp_path)]) == 2
    assert "same GPU" in capsys.readouterr().out


def test_a_noisier_case_gets_more_room_within_bounds() -> None:
    quiet, loud, wild = (
        baseline.Measured({"gate": "us"}, (1.0, 1.0 + noise, 1.0 - noise), (1.0,) * 3, (0.0,) * 3)
        for noise in (0.001, 0.02, 0.5)
    )
    assert compare.threshold(quiet) == compare.MINIMUM
    assert compare.threshold(loud) == pytest.approx(1.12)
    assert compare.threshold(wild) == compare.MAXIMUM


def test_a_time_that_is_no_number_fails(baselines: Path) -> None:
    base = baseline.load(baselines / "nvidia-h200" / "baseline.json")
    broken = {name: replace(case, us=(math.nan,) * len(case.us)) for name, case in base.cases.items()}
    verdicts = {finding.verdict for finding in compare.judge(replace(base, cases=broken), base)}
    assert verdicts == {"slower"}
