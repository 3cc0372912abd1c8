"""Declarations of `judge --declare`: written before the runs, and compared with them."""

import os
from pathlib import Path

import numpy as np
import pytest
from result_tables import write_table

from attnlab.__main__ import main
from attnlab.errors import InvalidConfig
from attnlab.external.question import parse_looks

WORDS = "a.csv b.csv --declare plan.json"
SETTINGS = "--metric loss --lower-is-better --margin 0.01 --looks 4,8"
FIRST_YEARS = 1e9  # seconds since the epoch: 2001


def write_runs(count, shift=-0.1, columns="", cells=""):
    """Write runs of both sides, of which B has more columns and differs by `shift`."""
    values = 3 + 0.001 * (np.arange(count) * 7 % 5)
    write_table("a.csv", values)
    rows = [f"{seed},{3 + shift - (value - 3)}{cells}\n" for seed, value in enumerate(values)]
    Path("b.csv").write_text(f"seed,loss{columns}\n" + "".join(rows))


def test_the_same_command_declares_and_judges(folder, judge):
    status, declared = judge(WORDS, SETTINGS)
    assert (status, declared["question"]["looks"], declared["files"]) == (0, [4, 8], ["a.csv", "b.csv"])
    before = (folder / "plan.json").read_bytes()
    write_runs(8)
    for words in ("", SETTINGS):
        status, verdict = judge(WORDS, words)
        assert (status, verdict["claim"], verdict["exploratory"]) == (0, "SUPPORTED", False)
        assert verdict["declaration_digest"] == declared["digest"]
    assert (folder / "plan.json").read_bytes() == before


def test_results_from_before_the_declaration_are_exploratory(judge, capfd):
    judge(WORDS, SETTINGS)
    write_runs(4)
    os.utime("a.csv", (FIRST_YEARS, FIRST_YEARS))
    verdict = judge(WORDS)[1]
    assert verdict["exploratory"]
    assert "a.csv is from 2001-09-09" in verdict["exploratory_reasons"][0]
    for cell in ("2024-05-02T00:00:00", "1714557600", "1714557600000"):  # the first as early as a zone allows
        write_runs(4, columns=",started", cells=f",{cell}")
        verdict = judge(WORDS)[1]
        [reason] = verdict["exploratory_reasons"]
        assert reason.startswith("4 of 8 runs began before it, b.csv:2 at 2024-05-01T10:00:00")
        assert verdict["run_times"] == "4 of 8 runs do not say when they began"
    write_runs(4, columns=",_timestamp", cells=",12.5")  # since the start of the run
    assert not judge(WORDS)[1]["exploratory"]
    assert main(["judge", *WORDS.split()]) == 0
    line = "8 of 8 runs do not say when they began: only the age of their files was checked"
    assert f"\n{line}\n" in capfd.readouterr().out


def test_an_edited_declaration_is_refused(folder, judge, refuse):
    judge(WORDS, SETTINGS)
    file = folder / "plan.json"
    edited = file.read_text().replace("0.01", "0.001")
    for text in (edited, "{}", "[]", "{", '{"digest": 1, "question": {"looks": 1}}'):
        file.write_text(text)
        message = (
            "its digest is not that of its content" if text == edited else "plan.json: not a declaration"
        )
        refuse(f"judge {WORDS}", message)


def test_looks():
    values = {"anytime": "anytime", "once": "once", "20": (20,), "4,8,12": (4, 8, 12)}
    assert {text: parse_looks(text) for text in values} == values
    for text in ("", "1,4", "4,4", "8,4", "4,", "four", "-4", "4.5"):
        with pytest.raises(InvalidConfig, match="--looks"):
            parse_looks(text)
