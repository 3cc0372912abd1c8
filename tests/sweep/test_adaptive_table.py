import io

import pytest
from rich.console import Console

from attnlab.sweep.status.adaptive_table import AdaptiveTable

HEADINGS = {"arm": "left", "runs": "right", "parameters": "right", "state": "left"}
NAME = "a_name_of_thirty_characters_00"


def render_table(width):
    table = AdaptiveTable(
        "two arms", HEADINGS, optional_columns=("parameters", "runs"), wrapped_columns=("state",)
    )
    table.add_row(NAME, "8", "108,288", "3 done, 5 to train")
    table.add_row("[b]mha[/b]", "8", "115,200", "8 done")
    text = io.StringIO()
    Console(width=width, file=text).print(table)
    return [line.rstrip() for line in text.getvalue().splitlines()]


def test_wide_terminal_shows_all_columns():
    title, head, first, second = render_table(100)
    assert (title, head.split()) == ("two arms", list(HEADINGS))
    assert first.split() == [NAME, "8", "108,288", "3", "done,", "5", "to", "train"]
    assert second.startswith("[b]mha[/b] "), "a name is no markup"


def test_optional_columns_are_dropped_before_a_name_is_cut():
    narrow = render_table(46)
    assert narrow[1].split() == ["arm", "runs", "state"]
    assert narrow[-1] == "(a wider terminal also shows parameters)"
    narrower = render_table(38)
    assert narrower[1].split() == ["arm", "state"]
    assert " ".join(narrower[-2:]) == "(a wider terminal also shows parameters, runs)"
    for width, lines in ((46, narrow), (38, narrower)):
        assert sum(NAME in line for line in lines) == 1
        assert max(map(len, lines)) <= width


def test_required_columns_are_folded_and_not_cut():
    lines = render_table(16)
    assert max(map(len, lines)) <= 16
    assert "".join(lines).count("_") == NAME.count("_")
    assert "…" not in "".join(lines)


@pytest.mark.parametrize("width", range(40, 81))
def test_cells_of_several_words_are_dropped_or_whole(width):
    headings = {"arm": "left", "seeds": "left", "parameters": "right", "time": "right", "state": "left"}
    table = AdaptiveTable("it", headings, ("parameters", "time", "seeds"), wrapped_columns=("state",))
    arms = [f"gqa alone lr={rate} of the grid" for rate in ("0.006", "0.003")]
    for arm in arms:
        table.add_row(arm, "400-427, 430, 440", "25,984", "~1 h 47 min", "4 later, 24 not needed")
    text = io.StringIO()
    Console(width=width, file=text).print(table)
    [_, head, *rows] = text.getvalue().splitlines()
    assert all(sum(arm in row for row in rows) == 1 for arm in arms)
    shown = head.split()
    assert {"arm", "state"} <= set(shown) <= set(headings), "no heading is cut"
    for heading, cell in (("seeds", "400-427, 430, 440"), ("time", "~1 h 47 min")):
        assert sum(cell in row for row in rows) == (2 if heading in shown else 0)
