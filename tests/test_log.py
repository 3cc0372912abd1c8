"""The numbers in reports/LOG.md, in the README and in docs are those of the reports they lead to.

A link to a report.json has the place of its number in its title: keys one after another, `key=value,...` for
the items of a list that have them, and at the end `mean`, `min` or `max` where there are several values. What
is printed must be that value, rounded; `%` is a hundredth. Sections that say "(history)" are left out.
"""

import json
import re
import statistics
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parent.parent / "reports"
LOG = (FOLDER / "LOG.md").read_text("utf-8")
STORED = {path.parent.name for path in FOLDER.glob("reference/*/report.json")}
LINK = re.compile(r'\[([^\]]+)\]\(([^\s)]+)(?: "([^"]*)")?\)')
OTHERS = [FOLDER.parent / "README.md", *sorted((FOLDER.parent / "docs").glob("*.md"))]
LOSS = re.compile(r"\d\s*nats\b")
WITH_UNIT = re.compile(r"\d\s*(?:nats\b|%|×|x\b|times\b)")
MANY: dict[str, Callable[[list[float]], float]] = {"mean": statistics.fmean, "min": min, "max": max}


def resolve(report: Any, path: str) -> float:
    """The number at a path. ValueError where there is none, or more than one."""
    values = [report]
    for step in path.split(" "):
        if step in MANY and all(isinstance(value, int | float) for value in values):
            values = [MANY[step](values)]
        elif "=" in step:
            wanted = dict(pair.split("=", 1) for pair in step.split(","))
            items = [item for value in values for item in value]
            values = [item for item in items if all(str(item.get(key)) == wanted[key] for key in wanted)]
        else:
            values = [value[step] for value in values]
    if len(values) != 1 or isinstance(values[0], bool) or not isinstance(values[0], int | float):
        raise ValueError(f"{path}: leads to {len(values)} values, or to no number")
    return float(values[0])


def agrees(printed: str, value: float) -> bool:
    """Whether a text is a value rounded to the digits that it has; a sign counts where it has one."""
    number = re.search(r"[+\N{MINUS SIGN}-]?\d[\d,]*(?:\.(\d+))?", printed)
    if number is None:
        return False
    text = number[0].replace(",", "").replace("\N{MINUS SIGN}", "-")
    scale = 100 if "%" in printed else 1
    shown = value * scale if text[0] in "+-" else abs(value * scale)
    return abs(shown - float(text)) <= 0.5 * 10 ** -len(number[1] or "") + 1e-9


def entries(log: str) -> Iterator[str]:
    """The paragraphs and list items of all sections but those of history."""
    for section in re.split(r"(?m)^(?=#)", log):
        title, _, rest = section.partition("\n")
        if "(history)" not in title:
            yield from (entry for entry in re.split(r"\n\n|\n(?=- )", rest) if entry.strip())


def misquoted(entry: str, read: Callable[[str], Any]) -> Iterator[str]:
    """What is wrong with the numbers that lead to a report."""
    for text, target, path in LINK.findall(entry):
        if not target.endswith("report.json"):
            continue
        try:
            value = resolve(read(target), path)
        except (KeyError, TypeError, ValueError, OSError, AttributeError) as error:
            yield f"[{text}] leads nowhere: {path}: {error!r}"
            continue
        if not agrees(text, value):
            yield f"[{text}] is {value} in {target}: {path}"


def faults(entry: str, read: Callable[[str], Any]) -> list[str]:
    """What is wrong with the numbers of an entry of the log."""
    wrong = [*misquoted(entry, read)]
    for text, target, _ in LINK.findall(entry):
        if target.startswith("#"):
            if f"## {target[1:].replace('-', ' ')}\n" not in LOG.lower():
                wrong.append(f"[{text}] leads to no section: {target}")
        elif not target.endswith("report.json") and not (FOLDER / target).exists():
            wrong.append(f"[{text}] leads to no file: {target}")
    return wrong + rootless(entry)


def rootless(entry: str) -> list[str]:
    """The numbers with a unit, of an entry about a stored report, that lead nowhere."""
    if not STORED & set(re.findall(r"`(\w+)`", entry)):
        return []
    bare = LINK.sub("", entry)
    return [
        f"{bare[max(0, one.start() - 40) : one.end()]!r} says not where it is from"
        for one in WITH_UNIT.finditer(bare)
    ]


@cache
def report(target: str, folder: Path = FOLDER) -> Any:
    return json.loads((folder / target).read_text("utf-8"))


@pytest.mark.parametrize("entry", list(entries(LOG)), ids=lambda entry: " ".join(entry.split())[:40])
def test_the_numbers_of_the_log_are_those_of_the_reports(entry):
    assert faults(entry, report) == []


@pytest.mark.parametrize("path", OTHERS, ids=lambda path: path.stem)
def test_the_numbers_of_other_documents_are_those_of_the_reports(path):
    text = path.read_text("utf-8")
    assert [*misquoted(text, lambda target: report(target, path.parent))] == []
    assert LOSS.findall(LINK.sub("", text)) == [], "says not where it is from"
    assert [fault for entry in entries(text) for fault in rootless(entry)] == []


def test_the_log_says_of_every_open_hypothesis_why_it_was_not_paid():
    _, _, rest = LOG.partition("why it was not paid\n")
    told = re.findall(r"(?m)^- `(\w+)`", rest.split("\n## ")[0])
    open_ = {
        name
        for name in STORED
        for claim in report(f"reference/{name}/report.json")["verdict"]["claims"]
        if claim["verdict"] == "INCONCLUSIVE" and "@" not in name
    }
    assert sorted(told) == sorted(open_)


def test_most_stored_reports_are_told_of_and_their_numbers_checked():
    assert len([target for _, target, _ in LINK.findall(LOG) if target.endswith("report.json")]) >= 30


MADE = {
    "runs": [{"arm": "a", "seed": seed, "metrics": {"x/1.5": x}} for seed, x in enumerate((0.416, 0.4))],
    "claims": [{"arm": "b", "metric": "x", "decision": {"estimate": -0.394}}, {"arm": "b", "metric": "y"}],
}  # fmt: skip


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("runs arm=a,seed=1 metrics x/1.5", 0.4), ("runs arm=a metrics x/1.5 mean", 0.408),
        ("runs metrics x/1.5 max", None), ("claims arm=b,metric=x decision estimate", -0.394),
        ("runs arm=a metrics x/1.5", None), ("runs arm=z metrics x/1.5", None),
        ("claims arm=b,metric=x", None),
    ],
)  # fmt: skip
def test_a_path_leads_to_one_number_or_nowhere(path, value):
    if value is None:
        with pytest.raises((ValueError, TypeError)):
            resolve(MADE, path)
    else:
        assert resolve(MADE, path) == pytest.approx(value)


@pytest.mark.parametrize(
    ("printed", "value", "right"),
    [
        ("0.416", 0.41649, True), ("0.42", 0.416, True), ("0.35", 0.416, False), ("0.41 nats", 0.416, False),
        ("39.4 %", 0.39352, True), ("37 %", 0.39352, False), ("0.10 nats", -0.104, True),
        ("−0.10", 0.104, False),
        ("−0.10", -0.104, True), ("1,024 B", 1024, True), ("many", 1, False), ("8.0 %", 0.0801, True),
    ],
)  # fmt: skip
def test_a_printed_number_is_the_value_to_its_last_digit(printed, value, right):
    assert agrees(printed, value) is right


@pytest.mark.parametrize(
    ("entry", "wrong"),
    [
        ('it is [0.41](r/report.json "runs arm=a metrics x/1.5 mean")', 0),
        ('it is [0.35](r/report.json "runs arm=a metrics x/1.5 mean")', 1),
        ('it is [0.41](r/report.json "runs arm=a metrics x/1.6 mean")', 1),
        ("`gqa_vs_mha` costs 0.02 nats, 3 % of it", 2),
        ("`gqa_vs_mha` costs [0.02 nats](#not-kept)", 0),
        ("`gqa_vs_mha` costs [0.02 nats](#nowhere)", 1),
        ("`gqa_vs_mha` costs [0.02 nats](../conf/experiment/none.yaml)", 1),
        ("something else costs 0.02 nats", 0),
    ],
)
def test_a_number_without_its_report_is_found(entry, wrong):
    assert len(faults(entry, lambda target: MADE)) == wrong


def test_history_is_left_out():
    log = "# L\n\nfirst\n\n## Then (history)\n\n- old\n\n## Now\n\n- one\n  more\n- two\n"
    assert [entry.strip() for entry in entries(log)] == ["first", "- one\n  more", "- two"]
