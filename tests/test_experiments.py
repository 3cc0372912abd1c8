"""Every experiment that ships runs end to end in its debug size, and says so."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from attnlab.config import CONF

EXPERIMENTS = sorted(path.stem for path in (CONF / "experiment").glob("*.yaml"))


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiment_ends_in_a_report(name, tmp_path):
    line = [
        sys.executable, "-m", "attnlab", f"+experiment={name}", "size=debug", "seed=0,1", "logger=none",
        f"paths.runs={tmp_path / 'runs'}", f"paths.reports={tmp_path / 'reports'}",
        f"paths.cache={tmp_path / 'cache'}",
    ]  # fmt: skip
    ended = subprocess.run(
        line,
        capture_output=True,
        text=True,
        timeout=250,
        cwd=Path(__file__).parent.parent,
        env=dict(os.environ),
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    (folder,) = (tmp_path / "reports").glob(f"{name}*/")
    report = json.loads((folder / "report.json").read_text())
    assert report["schema"] >= 1
    for file in ("report.html", "report.md", "runs.csv"):
        assert (folder / file).stat().st_size > 100
    again = subprocess.run(
        line, capture_output=True, text=True, timeout=250, cwd=Path(__file__).parent.parent
    )
    assert again.returncode == 0
    assert ", 0 to train" in again.stdout, again.stdout


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiment_begins_with_its_question_in_prose(name):
    lines = (CONF / "experiment" / f"{name}.yaml").read_text().splitlines()
    assert lines[0] == "# @package _global_"
    assert lines[1].startswith("# Question: ")
    assert any(line.startswith("# Cost at S:") for line in lines)
