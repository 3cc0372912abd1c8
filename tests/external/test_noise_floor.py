"""The noise floor: `judge --noise` on runs that were trained elsewhere."""

import pytest
from result_tables import write_table

from attnlab.__main__ import main
from attnlab.cli.verdict_output import COLUMNS, MAX_LINES
from attnlab.errors import InvalidConfig
from attnlab.external.noise_floor import format_noise_floor, measure_noise_floor
from attnlab.external.result_files import ExternalRun
from attnlab.stats import find_group_seeds_needed


def make_runs(values, steps=(100,)):
    return [
        ExternalRun(f"a.csv:{row}", None, str(row), "done", steps, (value,))
        for row, value in enumerate(values, 2)
    ]


def test_noise_of_known_runs_in_json_and_lines(judge, capfd):
    write_table("base.csv", [1, 2, 3])
    words = "--noise base.csv --metric loss --margin 2"
    status, noise = judge(words)
    assert (status, noise["mean"], noise["sd"], noise["runs"]) == (0, 2.0, 1.0, 3)
    by_count = {row["runs_per_side"]: row["difference"] for row in noise["detectable"]}
    assert by_count[10] == pytest.approx(1.3249, abs=1e-4)
    assert sorted(by_count) == [2, 3, 5, 7, 10, 20, 40]
    assert noise["runs_per_side_for_margin"] == find_group_seeds_needed(2.0)
    assert main(["judge", *words.split()]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert (len(lines) <= MAX_LINES, max(map(len, lines)) <= COLUMNS) == (True, True)
    assert lines[0].startswith("loss of 3 runs: mean 2, standard deviation 1, 90% interval [")
    assert lines[-1] == f"{noise['runs_per_side_for_margin']} runs per side show a difference of 2."


def test_failed_runs_are_counted_and_extremes_are_marked():
    runs = [*make_runs([1.0, 2.0]), ExternalRun("a.csv:9", None, None, "diverged", (), ())]
    noise = measure_noise_floor(runs, "loss", "best", lower_is_better=True)
    assert (noise["runs"], noise["diverged"], noise["missing"], noise["optimistic"]) == (2, 1, 0, True)
    first = "loss (best of each run, which is optimistic) of 2 runs, 1 diverged: mean"
    assert format_noise_floor(noise)[0].startswith(first)


@pytest.mark.parametrize(
    ("runs", "message"),
    [
        (make_runs([1.0]), "1 finished run; "),
        (make_runs([2.5, 2.5]), "all 2 runs have loss=2.5"),
        (make_runs([1.0]) + make_runs([3.0], (50,)), "--reduce last reads step 50, and in a.csv:2 step 100"),
    ],
)
def test_runs_without_a_noise_are_rejected(runs, message):
    with pytest.raises(InvalidConfig, match=message):
        measure_noise_floor(runs, "loss", "last")
