"""`judge --champion --log`: what is tested, counted and refused, and a log that two processes share."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from attnlab.__main__ import main
from attnlab.errors import InvalidConfig
from attnlab.external.candidate_log import load_log
from attnlab.stats import compute_t_evalue

SETTINGS = ["--metric", "loss", "--lower-is-better", "--margin", "0.01"]
START = ["--champion", "base.csv", "--log", "log.jsonl"]
LOG = Path("log.jsonl")
BASE = np.random.default_rng(0).normal(3.0, 0.01, 8)


def write_runs(name, values, first_seed=0):
    rows = "".join(f"{seed},{float(value)!r}\n" for seed, value in enumerate(values, first_seed))
    with open(name, "w") as file:
        file.write("seed,loss\n" + rows)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_runs("base.csv", BASE)
    for number, shift in enumerate((0.0, -0.1, 0.0, 0.01, -0.12)):
        write_runs(f"c{number}.csv", BASE + shift + np.random.default_rng(number + 1).normal(0, 0.004, 8))
    return tmp_path


def judge(capsys, *words):
    status = main(["judge", *words, "--json"])
    out, err = capsys.readouterr()
    return status, json.loads(out) if out else err


def test_candidates_are_counted_over_commands(capsys):
    status, first = judge(capsys, *START, "c0.csv", "c1.csv", *SETTINGS)
    assert (status, first["tests"], first["accepted"]) == (0, 2, 1)
    assert [row["threshold"] for row in first["candidates"]] == pytest.approx(
        [40, 120]
    )  # 5% in halves, sixths
    status, second = judge(capsys, *START, "c2.csv")  # settings are those of the log
    assert (status, second["candidates"][0]["threshold"]) == (4, pytest.approx(120))  # doubled by the first
    assert second["next_threshold"] == pytest.approx(200)
    header, *rows = Path("c1.csv").read_text().splitlines()
    Path("again.csv").write_text("\n".join([header, *rows[::-1]]) + "\n")
    status, again = judge(capsys, *START, "again.csv", "c1.csv")  # the same runs are one test
    assert (status, again["tests"], again["candidates"][0]["test"]) == (0, 3, 2)
    row, _ = again["candidates"]
    runs = np.loadtxt("c1.csv", delimiter=",", skiprows=1)[:, 1]
    assert row["e_value"] == pytest.approx(compute_t_evalue(BASE - runs - 0.01))
    assert [test.candidate for test in load_log(LOG).tests] == ["c0.csv", "c1.csv", "c2.csv"]


def test_a_batch_is_tested_at_once(capsys):
    status, batch = judge(
        capsys, *START, "--batch", "--fdr", "0.1", *(f"c{i}.csv" for i in range(5)), *SETTINGS
    )
    assert (status, batch["accepted"], batch["next_threshold"]) == (0, 2, None)
    assert {row["threshold"] for row in batch["candidates"]} == {5 / (0.1 * 2)}
    write_runs("new.csv", BASE - 0.2)
    status, error = judge(capsys, *START, "new.csv")
    assert status == 2
    assert "its batch of 5 candidates was tested: start another log for new.csv" in error


def test_unpaired_and_diverged_candidates(capsys):
    write_runs("other_seeds.csv", BASE[::-1] - 0.2, first_seed=50)
    with open("c0.csv", "a") as file:
        file.write("8,\n")
    with open("bad.csv", "w") as file:
        file.write(
            "seed,loss,status\n"
            + "".join(f"{seed},,diverged\n" for seed in range(5))
            + "5,3.1,done\n6,3,done\n7,3,done\n"
        )
    status, document = judge(capsys, *START, "other_seeds.csv", "bad.csv", *SETTINGS)
    assert (status, [row["accepted"] for row in document["candidates"]]) == (0, [True, False])
    assert document["candidates"][1]["e_value"] < 1
    status, error = judge(capsys, *START, "c0.csv")
    assert (status, "c0.csv:10: loss is empty" in error) == (2, True)
    assert len(load_log(LOG).tests) == 2


def test_winners_are_confirmed_on_fresh_seeds(capsys):
    judge(capsys, *START, "c0.csv", "c1.csv", *SETTINGS)
    confirm = ["--log", "log.jsonl", "--confirm"]
    write_runs("fresh_a.csv", BASE, 100)
    write_runs("fresh_b.csv", BASE - 0.1 + np.random.default_rng(9).normal(0, 0.004, 8), 100)
    for _ in range(2):  # the same runs again are no other confirmation
        status, document = judge(capsys, *confirm, "c1.csv", "fresh_a.csv", "fresh_b.csv")
        assert (status, document["claim"], document["exploratory"]) == (0, "SUPPORTED", False)
        assert (document["earlier_confirmations"], len(load_log(LOG).confirmations)) == (0, 1)
    for words, message in [
        (["c1.csv", "base.csv", "c1.csv"], "base.csv:2: seed 0 was used in test 2 of c1.csv"),
        (["c0.csv", "fresh_a.csv", "fresh_b.csv"], "c0.csv: it was not accepted"),
        (["c9.csv", "fresh_a.csv", "fresh_b.csv"], "log.jsonl has no such candidate: c0.csv, c1.csv"),
        (["c1.csv", "fresh_a.csv"], "--confirm: give two files"),
    ]:
        status, error = judge(capsys, *confirm, *words)
        assert (status, message in error, len(error.strip().splitlines())) == (2, True, 1), error
    assert len(load_log(LOG).confirmations) == 1
    write_runs("more_a.csv", np.append(BASE, 3.0), 100)  # a run was added
    write_runs("more_b.csv", np.append(BASE - 0.1 + np.random.default_rng(9).normal(0, 0.004, 8), 2.9), 100)
    status, document = judge(capsys, *confirm, "c1.csv", "more_a.csv", "more_b.csv")
    assert (status, document["earlier_confirmations"]) == (0, 1)
    write_runs("next.csv", BASE - 0.3 + np.random.default_rng(10).normal(0, 0.004, 8), 100)
    champion = ["--log", "log.jsonl", "next.csv", "--champion"]
    status, error = judge(capsys, *champion, "c0.csv")
    assert (status, "c0.csv: neither the champion's runs of log.jsonl nor" in error) == (2, True)
    assert judge(capsys, *champion, "more_b.csv")[0] in (
        0,
        4,
    )  # the winner's fresh runs are the next champion


def test_sorted_files_of_unpaired_runs_give_no_evidence(capsys):
    """Pairs in the order of sorted files would differ by a constant."""
    random = np.random.default_rng(5)
    accepted = []
    for number in range(20):
        write_runs("sorted_a.csv", sorted(random.normal(3, 0.01, 12)))
        write_runs("sorted_b.csv", sorted(random.normal(2.99, 0.01, 20)), 100)
        words = ["--champion", "sorted_a.csv", "--log", f"log{number}.jsonl", "sorted_b.csv", *SETTINGS]
        accepted += [row["e_value"] >= 40 for row in judge(capsys, *words)[1]["candidates"]]
    assert sum(accepted) <= 1


@pytest.mark.parametrize(
    ("words", "pairs", "most", "needed"), [([], 3, "26", 40), (["--batch", "c1.csv"], 2, "6", 20)]
)
def test_too_few_runs_to_be_accepted_are_refused_and_cost_nothing(folder, capsys, words, pairs, most, needed):
    write_runs("few.csv", BASE[:pairs] - 0.1)
    status, error = judge(capsys, *START, *words, "few.csv", *SETTINGS)
    expected = (
        f"few.csv: {pairs} pairs of runs give an e-value of at most {most}, and it needs {needed}: train "
        f"{pairs + 1} a side or more"
    )
    assert (status, expected in error) == (2, True), error
    assert not (folder / "log.jsonl").exists()


def test_a_candidate_that_cannot_reach_its_threshold_in_a_command_is_left_out(capsys):
    write_runs("few.csv", BASE[:3] - 0.1)
    write_runs("four.csv", BASE[:4] + np.array([0.001, 0.01, 0.003, 0.02]))  # an e-value of at most 140
    words = [*START, "few.csv", "c0.csv", "c2.csv", "four.csv", *SETTINGS]
    status, document = judge(capsys, *words)
    assert (status, [row["test"] for row in document["candidates"]]) == (4, [0, 1, 2, 0])
    assert [row["threshold"] for row in document["candidates"]] == pytest.approx([40, 40, 120, 240])
    assert (document["tests"], document["next_threshold"]) == (2, pytest.approx(240))
    assert [test.candidate for test in load_log(LOG).tests] == ["c0.csv", "c2.csv"]
    assert main(["judge", *words[:3], "log2.jsonl", *words[4:]]) == 4
    text = " ".join(capsys.readouterr().out.split())
    shortage = "3 pairs of runs give an e-value of at most 26, and it needs 40: train 4 a side or more"
    assert f"not tested: few.csv: {shortage}" in text
    assert "the next needs an e-value of 240; digest " in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["base.csv", "c0.csv", "--batch", *SETTINGS], "--batch: add --champion and --log"),
        (["--champion", "base.csv", "c0.csv", *SETTINGS], "--champion: add --log FILE"),
        (["--log", "log.jsonl", "c0.csv", *SETTINGS], "--log: give either --champion FILE"),
        ([*START, *SETTINGS], "--champion: name the files of the candidates"),
        ([*START, "c0.csv"], "--metric is missing"),
        ([*START, "c0.csv", *SETTINGS, "--fdr", "5"], "--fdr 5: a number between 0 and 1"),
        ([*START, "c0.csv", *SETTINGS, "--looks", "8"], "--looks: has no effect with --log"),
        ([*START, "base.csv", *SETTINGS], "base.csv: the same runs as those of the champion"),
        (
            ["--champion", "base.csv", "--log", "no/log.jsonl", "c0.csv", *SETTINGS],
            "no/log.jsonl: no such folder",
        ),
    ],
)  # fmt: skip
def test_invalid_commands_leave_no_log(folder, capsys, words, message):
    status, error = judge(capsys, *words)
    assert (status, message in error, len(error.strip().splitlines())) == (2, True, 1), error
    assert not (folder / "log.jsonl").exists()


def test_edited_logs_and_other_questions_are_refused(folder, capsys):
    judge(capsys, *START, "c0.csv", *SETTINGS)
    judge(capsys, *START, "c1.csv")
    text = (folder / "log.jsonl").read_text()
    lines = text.splitlines(keepends=True)
    status, error = judge(capsys, *START, "c2.csv", *SETTINGS[:-1], "0.02")
    assert (status, "margin 0.02, the log has 0.01" in error) == (2, True)
    for edited, message in [
        (lines[0] + lines[2], "log.jsonl:2: does not follow the line before it"),
        (lines[1] + lines[2], "log.jsonl:1: does not follow"),
        (text.replace('"accepted": false', '"accepted": true', 1), "log.jsonl:3: does not follow"),
        (text + "{}\n", "log.jsonl:4: not a record"),
        (text + text[: text.index("\n") + 1], "log.jsonl:4: does not follow"),
        ("{}\n", "log.jsonl:1: not a record"),
        ("\n", "log.jsonl:1: not a record"),
    ]:
        (folder / "log.jsonl").write_text(edited)
        with pytest.raises(InvalidConfig, match=message):
            load_log(folder / "log.jsonl")
        assert judge(capsys, *START, "c2.csv")[0] == 2
        assert (folder / "log.jsonl").read_text() == edited


def test_an_interrupted_line_is_not_a_test(folder, capsys):
    judge(capsys, *START, "c0.csv", *SETTINGS)
    with (folder / "log.jsonl").open("a") as file:
        file.write('{"kind": "test", "test": 2, "champ')
    assert len(load_log(folder / "log.jsonl").tests) == 1
    _, document = judge(capsys, *START, "c1.csv")
    assert (document["tests"], document["candidates"][0]["test"]) == (2, 2)
    assert len(load_log(folder / "log.jsonl").tests) == 2


def test_two_processes_share_a_log(folder):
    """Each tests six candidates, one command each: twelve tests, each with its own number and level."""
    names = [f"n{number}.csv" for number in range(12)]
    for number, name in enumerate(names):
        write_runs(name, BASE + np.random.default_rng(number).normal(0, 0.01, 8))
    loop = (
        "import sys\nfrom attnlab.__main__ import main\n"
        f"for name in sys.argv[1:]:\n    assert main(['judge', *{START!r}, name, *{SETTINGS!r}]) in (0, 4)\n"
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", loop, *part], cwd=folder, stdout=subprocess.DEVNULL)
        for part in (names[::2], names[1::2])
    ]
    assert [process.wait(120) for process in processes] == [0, 0]
    tests = load_log(folder / "log.jsonl").tests
    assert [test.test for test in tests] == [*range(1, 13)]
    assert {test.candidate for test in tests} == {*names}
