"""The page of a verdict on runs that were trained elsewhere: every run, the interval, the runs needed."""

import json
import statistics
import sys
from pathlib import Path
from typing import Any

from attnlab.external.judgment import count_digits
from attnlab.external.question import format_looks
from attnlab.report.charts.comparison_charts import build_interval_chart
from attnlab.report.charts.comparison_figures import Figure
from attnlab.report.charts.svg import BAND
from attnlab.report.charts.vega_layers import (
    Spec,
    assign_styles,
    build_chart,
    build_layer,
    build_nominal_channel,
    build_quantitative_channel,
    build_reference_line,
    build_style_channels,
    compute_domain,
    count_ticks,
)
from attnlab.report.number_format import NONE, format_number
from attnlab.report.pages.html import FIGURE_WIDTHS, render_figure_page
from attnlab.report.pages.report_files import write_atomically
from attnlab.report.schema import MEANINGS
from attnlab.store.atomic_files import parse_json, read_user_text
from attnlab.store.fingerprint import compute_digest

MAX_SEED_ROWS = 60  # of the chart of differences; the table has every seed
FOLDER_KEYS = ("digests", "metric", "direction", "margin", "reduce", "looks", "declaration_digest")
DATA_FILE, PAGE_FILE = "judgment.json", "report.html"
TESTS = {  # by pairing
    True: "Student's t for the mean difference of paired seeds",
    False: "Welch's t for the difference of two means",
}
RANK_TEST = "e-values for the median difference: at least one run diverged, so only the order counts"


def try_to_write(document: dict[str, Any], parent: Path) -> str | None:
    """Write the page of a judgment and its data to a folder of its own; return the page's path.

    A folder that cannot be written costs the page and not the verdict: stderr has the reason.
    """
    stems = [Path(name).stem or "runs" for name in document["names"]]
    label = "".join(letter if letter.isalnum() else "_" for letter in f"{stems[0]}_vs_{stems[1]}")[:60]
    folder = parent / f"judge_{label}_{compute_digest([document[key] for key in FOLDER_KEYS], 8)}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps(document, indent=1, ensure_ascii=False) + "\n"
        write_atomically(folder / DATA_FILE, text.encode())
        return str(render_judgment(folder))
    except OSError as error:
        print(f"{folder}: no report page: {error.strerror}", file=sys.stderr)
        return None


def render_judgment(folder: Path) -> Path:
    """Render the page of a folder from its judgment.json alone, and return it."""
    document = parse_json(read_user_text(folder / DATA_FILE))
    write_atomically(folder / PAGE_FILE, render_page(document).encode())
    return folder / PAGE_FILE


def render_page(document: dict[str, Any]) -> str:
    """The page of a judgment."""
    digits = count_digits(document["margin"])
    return render_figure_page(
        "judgment.html",
        [figure for suffix in FIGURE_WIDTHS for figure in build_figures(document, suffix)],
        r=document,
        names=document["names"],
        meaning=MEANINGS[document["claim"]],
        power=_describe_power(document),
        method=_describe_method(document),
        number=lambda value: NONE if value is None else f"{value:.{digits + 1}f}",
        table_header=_list_table_header(document),
        table=_build_table(document, digits),
    )


def build_figures(document: dict[str, Any], suffix: str) -> list[Figure]:
    """The charts at the width of a suffix: interval, every run, and the difference of every seed."""
    width, metric = FIGURE_WIDTHS[suffix], document["metric"]
    figures = []
    if document["estimate"] is not None:
        low, high = _get_region(document)
        text = format_number(document["estimate"], count_digits(document["margin"]), sign=True)
        row = {
            "label": "B − A", "mean": document["estimate"], "low": document["interval"]["low"],
            "high": document["interval"]["high"], "from": low, "to": high, "verdict": document["claim"],
            "text": text, "description": document["sentence"],
        }  # fmt: skip
        spec = build_interval_chart([row], unit=f"difference in {metric}", width=width)
        figures.append(Figure(f"interval{suffix}", spec, document["sentence"]))
    figures.append(
        Figure(f"runs{suffix}", _build_run_chart(document, width), f"{metric} of every run of A and of B.")
    )
    differences = _list_differences(document)
    if differences and len(differences) <= MAX_SEED_ROWS:
        label = "Difference B − A by seed. " + "; ".join(
            f"seed {row['seed']}: {row['text']}" for row in differences
        )
        spec = _build_difference_chart(document, differences, width)
        figures.append(Figure(f"differences{suffix}", spec, label))
    return figures


def _build_run_chart(document: dict[str, Any], width: int) -> Spec:
    """A row per side: a ring per run, the mean filled, and a line between the runs of a seed."""
    runs = [
        {
            "arm": key.upper(), "seed": seed or str(number), "value": value,
            "description": f"{key.upper()} {f'seed {seed}' if seed else f'run {number}'}: {value:g}",
        }
        for key in "ab"
        for number, (value, seed) in enumerate(
            zip(document[key]["values"], document[key]["seeds"], strict=True), 1
        )
        if value is not None
    ]  # fmt: skip
    means = [
        {
            "arm": key.upper(),
            "value": statistics.mean(finite),
            "description": f"{key.upper()}: mean {statistics.mean(finite):g} of {len(finite)} finished runs",
        }
        for key in "ab"
        if (finite := [value for value in document[key]["values"] if value is not None])
    ]
    domain = compute_domain([run["value"] for run in runs])
    x = build_quantitative_channel("value", domain, document["metric"], tickCount=count_ticks(width))
    y = build_nominal_channel("arm")
    styles = assign_styles(["A", "B"], "A")
    code = build_style_channels("arm", styles)
    ring = {"size": 34, "strokeWidth": 1.1, "opacity": 0.85, "filled": False}
    join = {"strokeWidth": 0.8, "opacity": 0.4, "color": styles["A"][0]}
    layers = [
        build_layer("line", join, runs, x=x, y=y, detail="seed", order="arm") if document["paired"] else None,
        build_layer("point", ring, runs, x=x, y=y, color=code["color"], description="description"),
        build_layer(
            "point", {"size": 110, "filled": True, "opacity": 1}, x=x, y=y, description="description", **code
        ),
    ]
    return build_chart(width, 150, layers, means)


def _build_difference_chart(document: dict[str, Any], rows: list[Spec], width: int) -> Spec:
    """A row per seed, in the order of the differences, over the region where the claim holds."""
    rows = sorted(rows, key=lambda row: row["value"])
    margin = document["margin"]
    domain = compute_domain([*(row["value"] for row in rows), 0.0, margin, -margin])
    low, high = _get_region(document)
    x = build_quantitative_channel(
        "value", domain, f"difference in {document['metric']}", tickCount=count_ticks(width)
    )
    y = build_nominal_channel("seed", title="seed", labelFontSize=10)
    ends = {
        "x": {"datum": domain[0] if low is None else low},
        "x2": {"datum": domain[1] if high is None else high},
    }
    layers: list[Spec | None] = [
        build_layer("rect", {"color": BAND}, [{}], **ends),
        {**build_reference_line("x", 0), "data": {"values": [{}]}},
        build_layer("point", {"size": 50, "filled": True, "opacity": 1}, x=x, y=y, description="text"),
    ]
    return build_chart(width, 60 + 16 * len(rows), layers, rows)


def _get_region(document: dict[str, Any]) -> tuple[float | None, float | None]:
    """The differences for which the claim holds; None is unbounded."""
    margin = document["margin"]
    return (None, -margin) if document["direction"] == "lower" else (margin, None)


def _list_differences(document: dict[str, Any]) -> list[Spec]:
    """B - A of every seed for which both runs finished; empty if runs are not paired."""
    if not document["paired"]:
        return []
    digits = count_digits(document["margin"])
    rows = zip(document["a"]["seeds"], document["a"]["values"], document["b"]["values"], strict=True)
    return [
        {"seed": seed, "value": b - a, "text": format_number(b - a, digits, sign=True)}
        for seed, a, b in rows
        if a is not None and b is not None
    ]


def _list_table_header(document: dict[str, Any]) -> list[str]:
    return ["seed", "A", "B", "B − A"] if document["paired"] else ["A", "seed", "B", "seed"]


def _build_table(document: dict[str, Any], digits: int) -> list[list[str]]:
    """Every run: a row per seed, or both sides beside each other."""

    def show(value: float | None) -> str:
        return "diverged" if value is None else f"{value:.{digits + 1}f}"

    def subtract(theirs: float | None, ours: float | None) -> str:
        if theirs is None or ours is None:
            return NONE
        return format_number(theirs - ours, digits + 1, sign=True)

    a, b = document["a"], document["b"]
    if document["paired"]:
        return [
            [seed, show(ours), show(theirs), subtract(theirs, ours)]
            for seed, ours, theirs in zip(a["seeds"], a["values"], b["values"], strict=True)
        ]
    rows = []
    for index in range(max(a["runs"], b["runs"])):
        cells = list[str]()
        for side in (a, b):
            known = index < side["runs"]
            cells += [show(side["values"][index]), side["seeds"][index] or NONE] if known else ["", ""]
        rows.append(cells)
    return rows


def _describe_power(document: dict[str, Any]) -> str:
    required = document["required_runs_per_side"]
    if required is None:
        return (
            "No number of runs up to 10,000 a side would decide the claim with 80% power at the observed "
            "difference, or the runs have no spread from which to tell."
        )
    sentence = (
        f"{required} runs a side decide the claim with 80% power at the observed difference, in one declared "
        f"analysis (--looks {required})."
    )
    if document["claim"] != "INCONCLUSIVE":
        return sentence
    return f"{sentence} Runs may be added until there is a verdict only if it is anytime-valid."


def _describe_method(document: dict[str, Any]) -> list[tuple[str, str]]:
    looks = document["looks"]
    design = {
        "anytime": "none: anytime-valid, it holds however often, and for whatever reason, runs were added",
        "once": "none: one analysis of a number of runs that was set before the first one",
    }
    analyses = design[looks] if isinstance(looks, str) else f"at {format_looks(tuple(looks))} a side"
    if looks == "anytime" and document["basis"] == "ranks" and not document["paired"]:
        analyses = "none: it holds for one analysis or a few, as random pairs change when runs are added"
    gain = document["pairing_gain"]
    pairing_gain = "" if gain is None else f"unpaired runs would need {gain:.2f} times as many seeds"
    declared = "no"
    if document["declared"]:
        declared = f"{document['declared']}, SHA-256 {document['declaration_digest']}"
        if document["run_times"] != "known":
            declared += f"; {document['run_times']}, so only the age of their files was checked"
    reduction = document["reduce"]
    return [
        ("pairing", document["pairing"]),
        *([("gain of pairing", pairing_gain)] if pairing_gain else []),
        ("test", RANK_TEST if document["basis"] == "ranks" else TESTS[document["paired"]]),
        ("interval", f"{document['interval']['level'] or 0.95:.0%}, two-sided"),
        ("interim analyses", analyses),
        (
            "value of a run",
            reduction
            + (" (optimistic: the best of several evaluations)" if reduction == "best" else ""),
        ),
        ("declared", declared),
        *(
            (f"runs of {side}", f"{name}, SHA-256 {digest[:16]}")
            for side, name, digest in zip("AB", document["names"], document["digests"], strict=True)
        ),
    ]  # fmt: skip
