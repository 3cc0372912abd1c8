"""The noise floor: `judge --noise` on runs that were trained elsewhere."""

import json

import numpy as np
import pytest
from scipy import stats as scipy_stats

from attnlab.__main__ import main
from attnlab.errors import InvalidConfig
from attnlab.external.noise_floor import format_noise_floor, measure_noise_floor
from attnlab.external.result_files import ExternalRun
from attnlab.stats import estimate_sd_bounds, find_detectable_group_effect, find_group_seeds_needed
from attnlab.stats.power import compute_group_power


def make_runs(values, steps=(100,)):
    return [
        ExternalRun(f"a.csv:{row}", None, str(row), "done", steps, (value,))
        for row, value in enumerate(values, 2)
    ]


@pytest.mark.parametrize(("n", "effect"), [(2, 3.0), (5, 1.0), (20, 0.9)])
def test_power_between_groups_equals_the_noncentral_t(n, effect):
    df, noncentrality = 2 * n - 2, effect * (n / 2) ** 0.5
    critical = scipy_stats.t.ppf(0.975, df)
    tails = scipy_stats.nct.sf(critical, df, noncentrality) + scipy_stats.nct.cdf(
        -critical, df, noncentrality
    )
    assert compute_group_power(n, effect) == pytest.approx(tails, abs=1e-8)


def test_detectable_effect_and_runs_needed_invert_the_power():
    effect = find_detectable_group_effect(10)
    assert effect == pytest.approx(1.3249, abs=1e-4)  # Cohen's tables: 10 per group, 80%, 5% two-sided
    assert compute_group_power(10, effect) == pytest.approx(0.8, abs=1e-8)
    assert find_group_seeds_needed(0.5) == 64  # Cohen 1988, table 2.4.1
    assert find_group_seeds_needed(1e-6) is None


def test_interval_of_a_standard_deviation_covers():
    samples = np.random.default_rng(0).normal(0, 2, (4000, 6)).std(axis=1, ddof=1)
    bounds = np.array([estimate_sd_bounds(sd, 6) for sd in samples])
    assert ((bounds[:, 0] <= 2) & (bounds[:, 1] >= 2)).mean() == pytest.approx(0.9, abs=0.015)
    with pytest.raises(ValueError, match="n=1"):
        estimate_sd_bounds(1.0, 1)


def test_noise_of_known_runs():
    noise = measure_noise_floor(make_runs([1.0, 2.0, 3.0]), "loss", "last", margin=2.0)
    assert (noise["mean"], noise["sd"], noise["runs"]) == (2.0, 1.0, 3)
    by_count = {row["runs_per_side"]: row["difference"] for row in noise["detectable"]}
    assert by_count[10] == pytest.approx(1.3249, abs=1e-4)
    assert sorted(by_count) == [2, 3, 5, 7, 10, 20, 40]
    assert noise["runs_per_side_for_margin"] == find_group_seeds_needed(2.0)
    text = format_noise_floor(noise)
    assert "loss of 3 runs: mean 2, standard deviation 1.00" in text
    assert f"{noise['runs_per_side_for_margin']} runs per side show a difference of 2." in text


def test_failed_runs_are_counted_and_extremes_are_marked():
    runs = [*make_runs([1.0, 2.0]), ExternalRun("a.csv:9", None, None, "diverged", (), ())]
    noise = measure_noise_floor(runs, "loss", "best", lower_is_better=True)
    assert (noise["runs"], noise["diverged"], noise["missing"]) == (2, 1, 0)
    assert noise["optimistic"]
    assert "1 diverged" in format_noise_floor(noise)
    assert "optimistic" in format_noise_floor(noise)


@pytest.mark.parametrize(
    ("runs", "message"),
    [
        (make_runs([1.0]), "1 finished run; "),
        (make_runs([2.5, 2.5]), "all 2 runs have loss=2.5"),
        (
            make_runs([1.0, 2.0]) + make_runs([3.0], (50,)),
            "--reduce last reads step 50, and in a.csv:2 step 100",
        ),
    ],
)
def test_runs_without_a_noise_are_rejected(runs, message):
    with pytest.raises(InvalidConfig, match=message):
        measure_noise_floor(runs, "loss", "last")


def test_command_prints_json_and_a_table(tmp_path, capsys):
    path = tmp_path / "base.csv"
    path.write_text("seed,loss\n1,1\n2,2\n3,3\n")
    assert main(["judge", "--noise", str(path), "--metric", "loss", "--margin", "0.5"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["sd"] == 1.0
    assert "runs per side" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--noise", "FILE"], "--metric is missing"),
        (["heads=gqa", "--noise", "FILE", "--metric", "loss"], "remove heads=gqa"),
        (
            ["--noise", "FILE", "--metric", "loss", "--budget", "flops"],
            "--budget: runs that were trained elsewhere",
        ),
        (
            ["--noise", "FILE", "--metric", "loss", "--margin", "5%"],
            "--margin 5%: for files, give a positive",
        ),
        (["--noise", "FILE", "--metric", "loss", "--margin", "-1"], "--margin -1"),
        (["--noise", "FILE", "--metric", "loss", "--reduce", "best"], "--reduce best: add --lower-is-better"),
        (
            ["heads=mha", "heads=gqa", "--reduce", "best"],
            "--reduce: only for runs that were trained elsewhere",
        ),
    ],
)
def test_invalid_commands_are_rejected_in_one_line(tmp_path, capsys, words, message):
    path = tmp_path / "base.csv"
    path.write_text("seed,loss\n1,1\n2,2\n")
    assert main(["judge", *(str(path) if word == "FILE" else word for word in words)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert len(err.strip().splitlines()) == 1
