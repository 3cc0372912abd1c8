"""The simulation of many workers agrees with closed forms, and docs/scale.md shows its output."""

import math
import subprocess
import sys
from dataclasses import replace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "sweeps" / "simulate_scale.py"
spec = spec_from_file_location("simulate_scale", SCRIPT)
assert spec is not None
assert spec.loader is not None
scale = sys.modules["simulate_scale"] = module_from_spec(spec)
spec.loader.exec_module(scale)

EQUAL = scale.Setting(
    "equal runs", runs=103, run_seconds=70.0, spread=0.0, startup_seconds=11.0, checkpoint_seconds=13.0
)


@pytest.mark.parametrize("workers", [1, 7, 103, 200])
def test_equal_runs_without_interruptions_take_whole_rounds(workers):
    outcome = scale.simulate(EQUAL, workers)
    assert outcome.seconds == pytest.approx(math.ceil(103 / workers) * 81.0)
    assert (outcome.trained, outcome.startup) == pytest.approx((103 * 70.0, 103 * 11.0))
    assert outcome.lost == outcome.away == 0


def test_preemptions_lose_no_work_and_losses_do():
    preempted = scale.simulate(replace(EQUAL, preemptions_per_hour=20.0), 7)
    assert preempted.lost == 0
    assert preempted.away > 0
    lost = scale.simulate(replace(EQUAL, losses_per_hour=20.0), 7)
    n_losses = lost.away / EQUAL.replacement_seconds
    assert 0 < lost.lost < 13.0 * (n_losses + 7)
    assert min(preempted.idle, lost.idle) >= 0


def test_one_worker_loses_half_a_checkpoint_interval_on_average():
    setting = replace(EQUAL, runs=4000, run_seconds=1300.0, startup_seconds=0.0, losses_per_hour=1.0)
    outcome = scale.simulate(setting, 1)
    n_losses = outcome.away / setting.replacement_seconds
    assert outcome.lost / n_losses == pytest.approx(13.0 / 2, rel=0.1)


def test_page_shows_the_output():
    result = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True, check=True, cwd=ROOT)
    assert result.stdout.strip() in (ROOT / "docs" / "scale.md").read_text("utf-8")


def test_script_takes_other_numbers():
    command = [sys.executable, SCRIPT, "--runs", "20", "--workers", "3"]
    result = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    assert result.stdout.count("\n| 3 | ") == 4
