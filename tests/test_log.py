"""Numbers in reports/LOG.md, README and docs equal those of the linked reports.

The title of a link to a report.json is the path of the number: keys in sequence, `key=value,...` to select
items of a list, and finally `mean`, `min` or `max` to reduce several values or one list. The printed number
must be that value, rounded; `%` is a hundredth. Sections with "(history)" in the title are skipped.
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
OTHER_DOCUMENTS = [FOLDER.parent / "README.md", *sorted((FOLDER.parent / "docs").glob("*.md"))]
LOSS = re.compile(r"\d\s*nats\b")
WITH_UNIT = re.compile(r"\d\s*(?:nats\b|%|×|x\b|times\b)")
REDUCTIONS: dict[str, Callable[[list[float]], float]] = {"mean": statistics.fmean, "min": min, "max": max}


def resolve(report: Any, path: str) -> float:
    """Return the number at a path; ValueError if there is none or more than one."""
    values = [report]
    for step in path.split(" "):
        if step in REDUCTIONS and len(values) == 1 and isinstance(values[0], list):
            [values] = values
        if step in REDUCTIONS and all(isinstance(value, int | float) for value in values):
            values = [REDUCTIONS[step](values)]
        elif "=" in step:
            conditions = dict(pair.split("=", 1) for pair in step.split(","))
            items = [item for value in values for item in value]
            values = [
                item for item in items if all(str(item.get(key)) == conditions[key] for key in conditions)
            ]
        else:
            values = [value[step] for value in values]
    if len(values) != 1 or isinstance(values[0], bool) or not isinstance(values[0], int | float):
        raise ValueError(f"{path}: leads to {len(values)} values, or to no number")
    return float(values[0])


def agrees(printed: str, value: float) -> bool:
    """Whether a printed number is the value rounded to its digits; the sign counts if printed."""
    number = re.search(r"[+\N{MINUS SIGN}-]?\d[\d,]*(?:\.(\d+))?", printed)
    if number is None:
        return False
    text = number[0].replace(",", "").replace("\N{MINUS SIGN}", "-")
    scale = 100 if "%" in printed else 1
    signed_value = value * scale if text[0] in "+-" else abs(value * scale)
    return abs(signed_value - float(text)) <= 0.5 * 10 ** -len(number[1] or "") + 1e-9


def iter_entries(log: str) -> Iterator[str]:
    """Yield the paragraphs and list items of all sections except history."""
    for section in re.split(r"(?m)^(?=#)", log):
        title, _, rest = section.partition("\n")
        if "(history)" not in title:
            yield from (entry for entry in re.split(r"\n\n|\n(?=- )", rest) if entry.strip())


def find_misquotes(entry: str, load: Callable[[str], Any]) -> Iterator[str]:
    """Yield the errors of numbers that link to a report."""
    for text, target, path in LINK.findall(entry):
        if not target.endswith("report.json"):
            continue
        try:
            value = resolve(load(target), path)
        except (KeyError, TypeError, ValueError, OSError, AttributeError) as error:
            yield f"[{text}] leads nowhere: {path}: {error!r}"
            continue
        if not agrees(text, value):
            yield f"[{text}] is {value} in {target}: {path}"


def find_faults(entry: str, load: Callable[[str], Any]) -> list[str]:
    """List the errors of the numbers and links of an entry of the log."""
    problems = [*find_misquotes(entry, load)]
    for text, target, _ in LINK.findall(entry):
        if target.startswith("#"):
            if f"## {target[1:].replace('-', ' ')}\n" not in LOG.lower():
                problems.append(f"[{text}] leads to no section: {target}")
        elif not target.endswith("report.json") and not (FOLDER / target).exists():
            problems.append(f"[{text}] leads to no file: {target}")
    return problems + find_unlinked_numbers(entry)


def find_unlinked_numbers(entry: str) -> list[str]:
    """List numbers with a unit and without a link, in an entry about a stored report."""
    if not STORED & set(re.findall(r"`(\w+)`", entry)):
        return []
    text_without_links = LINK.sub("", entry)
    return [
        f"{text_without_links[max(0, match.start() - 40) : match.end()]!r} says not where it is from"
        for match in WITH_UNIT.finditer(text_without_links)
    ]


@cache
def load_report_json(target: str, folder: Path = FOLDER) -> Any:
    return json.loads((folder / target).read_text("utf-8"))


@pytest.mark.parametrize("entry", list(iter_entries(LOG)), ids=lambda entry: " ".join(entry.split())[:40])
def test_numbers_of_the_log_equal_the_reports(entry):
    assert find_faults(entry, load_report_json) == []


@pytest.mark.parametrize("path", OTHER_DOCUMENTS, ids=lambda path: path.stem)
def test_numbers_of_other_documents_equal_the_reports(path):
    text = path.read_text("utf-8")
    assert [*find_misquotes(text, lambda target: load_report_json(target, path.parent))] == []
    assert LOSS.findall(LINK.sub("", text)) == [], "says not where it is from"
    assert [fault for entry in iter_entries(text) for fault in find_unlinked_numbers(entry)] == []


def test_log_explains_every_inconclusive_hypothesis():
    _, _, rest = LOG.partition("why it was not paid\n")
    listed = re.findall(r"(?m)^- `(\w+)`", rest.split("\n## ")[0])
    inconclusive = {
        name
        for name in STORED
        for claim in load_report_json(f"reference/{name}/report.json")["verdict"]["claims"]
        if claim["verdict"] == "INCONCLUSIVE" and "@" not in name
    }
    assert sorted(listed) == sorted(inconclusive)


def test_log_links_at_least_30_numbers():
    assert len([target for _, target, _ in LINK.findall(LOG) if target.endswith("report.json")]) >= 30


SAMPLE_REPORT = {
    "runs": [{"arm": "a", "seed": seed, "metrics": {"x/1.5": x}} for seed, x in enumerate((0.416, 0.4))],
    "claims": [{"arm": "b", "metric": "x", "decision": {"estimate": -0.394}}, {"arm": "b", "metric": "y"}],
    "losses": [2.5, 2.1],
}  # fmt: skip


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("runs arm=a,seed=1 metrics x/1.5", 0.4), ("runs arm=a metrics x/1.5 mean", 0.408),
        ("runs metrics x/1.5 max", None), ("claims arm=b,metric=x decision estimate", -0.394),
        ("runs arm=a metrics x/1.5", None), ("runs arm=z metrics x/1.5", None),
        ("claims arm=b,metric=x", None), ("losses min", 2.1), ("losses", None),
    ],
)  # fmt: skip
def test_path_resolves_to_one_number_or_fails(path, value):
    if value is None:
        with pytest.raises((ValueError, TypeError)):
            resolve(SAMPLE_REPORT, path)
    else:
        assert resolve(SAMPLE_REPORT, path) == pytest.approx(value)


@pytest.mark.parametrize(
    ("printed", "value", "expected"),
    [
        ("0.416", 0.41649, True), ("0.42", 0.416, True), ("0.35", 0.416, False), ("0.41 nats", 0.416, False),
        ("39.4 %", 0.39352, True), ("37 %", 0.39352, False), ("0.10 nats", -0.104, True),
        ("−0.10", 0.104, False),
        ("−0.10", -0.104, True), ("1,024 B", 1024, True), ("many", 1, False), ("8.0 %", 0.0801, True),
    ],
)  # fmt: skip
def test_printed_number_is_the_value_rounded(printed, value, expected):
    assert agrees(printed, value) is expected


@pytest.mark.parametrize(
    ("entry", "expected"),
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
def test_unlinked_and_wrong_numbers_are_detected(entry, expected):
    assert len(find_faults(entry, lambda target: SAMPLE_REPORT)) == expected


def test_history_is_skipped():
    log = "# L\n\nfirst\n\n## Then (history)\n\n- old\n\n## Now\n\n- one\n  more\n- two\n"
    assert [entry.strip() for entry in iter_entries(log)] == ["first", "- one\n  more", "- two"]
