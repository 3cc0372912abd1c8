import io

from rich.console import Console

from attnlab.sweep.status.fitting import Fitting

HEADINGS = {"arm": "left", "runs": "right", "parameters": "right", "state": "left"}
NAME = "a_name_of_thirty_characters_00"


def drawn(width):
    table = Fitting("two arms", HEADINGS, spare=("parameters", "runs"), wraps=("state",))
    table.add(NAME, "8", "108,288", "3 done, 5 to train")
    table.add("[b]mha[/b]", "8", "115,200", "8 done")
    text = io.StringIO()
    Console(width=width, file=text).print(table)
    return [line.rstrip() for line in text.getvalue().splitlines()]


def test_what_fits_is_shown_whole():
    title, head, first, second = drawn(100)
    assert (title, head.split()) == ("two arms", list(HEADINGS))
    assert first.split() == [NAME, "8", "108,288", "3", "done,", "5", "to", "train"]
    assert second.startswith("[b]mha[/b] "), "a name is no markup"


def test_columns_are_left_out_before_a_name_is_cut():
    narrow = drawn(46)
    assert narrow[1].split() == ["arm", "runs", "state"]
    assert narrow[-1] == "(a wider terminal has parameters too)"
    narrower = drawn(38)
    assert narrower[1].split() == ["arm", "state"]
    assert " ".join(narrower[-2:]) == "(a wider terminal has parameters, runs too)"
    for width, lines in ((46, narrow), (38, narrower)):
        assert sum(NAME in line for line in lines) == 1
        assert max(map(len, lines)) <= width


def test_what_may_not_be_left_out_is_folded_and_not_cut():
    lines = drawn(16)
    assert max(map(len, lines)) <= 16
    assert "".join(lines).count("_") == NAME.count("_")
    assert "…" not in "".join(lines)
