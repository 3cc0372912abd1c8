"""`judge --champion --log`: what is tested, counted and refused, and a log that two processes share."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from result_tables import write_table

from attnlab.__main__ import main
from attnlab.external.candidate_log import load_log
from attnlab.stats import compute_t_evalue

SETTINGS = "--metric loss --lower-is-better --margin 0.01"
START = "--champion base.csv --log log.jsonl"
LOG = Path("log.jsonl")
BASE = np.random.default_rng(0).normal(3.0, 0.01, 8)


@pytest.fixture(autouse=True)
def candidates(folder):
    write_table("base.csv", BASE)
    for number, shift in enumerate((0.0, -0.1, 0.0, 0.01, -0.12)):
        write_table(f"c{number}.csv", draw_runs(shift, number + 1))


def draw_runs(shift, seed):
    """Draw the runs of a candidate, which differ from the champion's by `shift` and noise."""
    return BASE + shift + np.random.default_rng(seed).normal(0, 0.004, 8)


def test_candidates_are_counted_over_commands(judge):
    status, first = judge(START, "c0.csv c1.csv", SETTINGS)
    assert (status, first["tests"], first["accepted"]) == (0, 2, 1)
    thresholds = [row["threshold"] for row in first["candidates"]]
    assert thresholds == pytest.approx([40, 120])  # 5% in halves, sixths
    runs = np.loadtxt("c1.csv", delimiter=",", skiprows=1)[:, 1]
    assert first["candidates"][1]["e_value"] == pytest.approx(compute_t_evalue(BASE - runs - 0.01))
    status, second = judge(START, "c2.csv")  # settings are those of the log
    assert (status, second["candidates"][0]["threshold"]) == (4, pytest.approx(120))  # doubled by the first
    assert second["next_threshold"] == pytest.approx(200)
    header, *rows = Path("c1.csv").read_text().splitlines()
    Path("again.csv").write_text("\n".join([header, *rows[::-1]]) + "\n")
    status, again = judge(START, "again.csv c1.csv")  # the same runs are one test
    assert (status, again["tests"], again["candidates"][0]["test"]) == (0, 3, 2)
    assert [test.candidate for test in load_log(LOG).tests] == ["c0.csv", "c1.csv", "c2.csv"]


def test_a_batch_is_tested_at_once(judge, refuse):
    status, batch = judge(START, "--batch --fdr 0.1 c0.csv c1.csv c2.csv c3.csv c4.csv", SETTINGS)
    assert (status, batch["accepted"], batch["next_threshold"]) == (0, 2, None)
    assert {row["threshold"] for row in batch["candidates"]} == {5 / (0.1 * 2)}
    write_table("new.csv", BASE - 0.2)
    message = "its batch of 5 candidates was tested: start another log for new.csv"
    refuse(f"judge {START} new.csv", message)


def test_unpaired_and_diverged_candidates(judge, refuse):
    write_table("other_seeds.csv", BASE[::-1] - 0.2, 50)
    with open("c0.csv", "a") as file:
        file.write("8,\n")
    rows = [*(f"{seed},,diverged" for seed in range(5)), "5,3.1,done", "6,3,done", "7,3,done"]
    Path("bad.csv").write_text("\n".join(["seed,loss,status", *rows]))
    status, document = judge(START, "other_seeds.csv bad.csv", SETTINGS)
    assert (status, [row["accepted"] for row in document["candidates"]]) == (0, [True, False])
    assert document["candidates"][1]["e_value"] < 1
    refuse(f"judge {START} c0.csv", "c0.csv:10: loss is empty")
    assert len(load_log(LOG).tests) == 2


def test_winners_are_confirmed_on_fresh_seeds(judge, refuse):
    judge(START, "c0.csv c1.csv", SETTINGS)
    confirm = "--log log.jsonl --confirm"
    fresh = draw_runs(-0.1, 9)
    write_table("fresh_a.csv", BASE, 100)
    write_table("fresh_b.csv", fresh, 100)
    for _ in range(2):  # the same runs again are no other confirmation
        status, document = judge(confirm, "c1.csv fresh_a.csv fresh_b.csv")
        assert (status, document["claim"], document["exploratory"]) == (0, "SUPPORTED", False)
        assert (document["earlier_confirmations"], len(load_log(LOG).confirmations)) == (0, 1)
    for words, message in {
        "c1.csv base.csv c1.csv": "base.csv:2: seed 0 was used in test 2 of c1.csv",
        "c0.csv fresh_a.csv fresh_b.csv": "c0.csv: it was not accepted",
        "c9.csv fresh_a.csv fresh_b.csv": "log.jsonl has no such candidate: c0.csv, c1.csv",
        "c1.csv fresh_a.csv": "--confirm: give two files",
    }.items():
        refuse(f"judge {confirm} {words}", message)
    assert len(load_log(LOG).confirmations) == 1
    write_table("more_a.csv", [*BASE, 3.0], 100)  # a run was added
    write_table("more_b.csv", [*fresh, 2.9], 100)
    status, document = judge(confirm, "c1.csv more_a.csv more_b.csv")
    assert (status, document["earlier_confirmations"]) == (0, 1)
    write_table("next.csv", draw_runs(-0.3, 10), 100)
    champion = "--log log.jsonl next.csv --champion"
    refuse(f"judge {champion} c0.csv", "c0.csv: neither the champion's runs of log.jsonl nor")
    assert judge(champion, "more_b.csv")[0] in (0, 4)  # the winner's fresh runs are the next champion


def test_sorted_files_of_unpaired_runs_give_no_evidence(judge):
    """Pairs in the order of sorted files would differ by a constant."""
    random = np.random.default_rng(5)
    accepted = []
    for number in range(20):
        write_table("sorted_a.csv", sorted(random.normal(3, 0.01, 12)))
        write_table("sorted_b.csv", sorted(random.normal(2.99, 0.01, 20)), 100)
        words = f"--champion sorted_a.csv --log log{number}.jsonl sorted_b.csv"
        accepted += [row["e_value"] >= 40 for row in judge(words, SETTINGS)[1]["candidates"]]
    assert sum(accepted) <= 1


@pytest.mark.parametrize(
    ("words", "pairs", "most", "needed"), [("", 3, "26", 40), ("--batch c1.csv", 2, "6", 20)]
)
def test_too_few_runs_to_be_accepted_are_refused_and_cost_nothing(refuse, words, pairs, most, needed):
    write_table("few.csv", BASE[:pairs] - 0.1)
    shortage = f"few.csv: {pairs} pairs of runs give an e-value of at most {most}, and it needs {needed}: "
    refuse(f"judge {START} {words} few.csv {SETTINGS}", f"{shortage}train {pairs + 1} a side or more")
    assert not LOG.exists()


def test_a_candidate_that_cannot_reach_its_threshold_in_a_command_is_left_out(judge, capfd):
    write_table("few.csv", BASE[:3] - 0.1)
    write_table("four.csv", BASE[:4] + np.array([0.001, 0.01, 0.003, 0.02]))  # an e-value of at most 140
    words = f"{START} few.csv c0.csv c2.csv four.csv {SETTINGS}"
    assert main(["judge", *words.replace("log.jsonl", "log2.jsonl").split()]) == 4
    text = " ".join(capfd.readouterr().out.split())
    assert "not tested: few.csv: 3 pairs of runs give an e-value of at most 26" in text
    assert "the next needs an e-value of 240; digest " in text
    status, document = judge(words)
    assert (status, [row["test"] for row in document["candidates"]]) == (4, [0, 1, 2, 0])
    assert [row["threshold"] for row in document["candidates"]] == pytest.approx([40, 40, 120, 240])
    assert (document["tests"], document["next_threshold"]) == (2, pytest.approx(240))


def test_edited_logs_are_refused_and_an_interrupted_line_is_not_a_test(judge, refuse):
    judge(START, "c0.csv", SETTINGS)
    judge(START, "c1.csv")
    text = LOG.read_text()
    lines = text.splitlines(keepends=True)
    line = f"judge {START} c2.csv"
    refuse(f"{line} {SETTINGS} --margin 0.02", "margin 0.02, the log has 0.01")
    for edited, message in {
        lines[0] + lines[2]: "log.jsonl:2: does not follow the line before it",
        lines[1] + lines[2]: "log.jsonl:1: does not follow",
        text.replace('"accepted": false', '"accepted": true', 1): "log.jsonl:3: does not follow",
        text + "{}\n": "log.jsonl:4: not a record",
        text + lines[0]: "log.jsonl:4: does not follow",
        "{}\n": "log.jsonl:1: not a record",
        "\n": "log.jsonl:1: not a record",
    }.items():
        LOG.write_text(edited)
        refuse(line, message)
        assert LOG.read_text() == edited
    LOG.write_text(text + '{"kind": "test", "test": 3, "champ')
    assert len(load_log(LOG).tests) == 2
    _, document = judge(START, "c2.csv")
    assert (document["tests"], document["candidates"][0]["test"], len(load_log(LOG).tests)) == (3, 3, 3)


def test_two_processes_share_a_log(folder):
    """Each tests six candidates, one command each: twelve tests, each with its own number and level."""
    names = [f"n{number}.csv" for number in range(12)]
    for number, name in enumerate(names):
        write_table(name, BASE + np.random.default_rng(number).normal(0, 0.01, 8))
    loop = (
        "import sys\nfrom attnlab.__main__ import main\nfor name in sys.argv[1:]:\n"
        f"    assert main(['judge', *'{START} {SETTINGS}'.split(), name]) in (0, 4)\n"
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", loop, *part], cwd=folder, stdout=subprocess.DEVNULL)
        for part in (names[::2], names[1::2])
    ]
    assert [process.wait(120) for process in processes] == [0, 0]
    tests = load_log(LOG).tests
    assert [test.test for test in tests] == [*range(1, 13)]
    assert {test.candidate for test in tests} == {*names}
