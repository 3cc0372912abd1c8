"""A ladder on disk: ladder.json, and the page and the Markdown that are made of it alone."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from attnlab.report.across import figures
from attnlab.report.across.ladder import build, counted
from attnlab.report.build import plain
from attnlab.report.charts.drawing import Drawn, draw
from attnlab.report.charts.marks import style
from attnlab.report.ladder import LADDER, Comparison, LadderReport, load
from attnlab.report.pages.files import dumps, list_again, put
from attnlab.report.pages.html import asset, environment, picture
from attnlab.report.pages.markdown import cell, table
from attnlab.report.schema import Report
from attnlab.report.tables.format import NONE, span, text
from attnlab.stats.across.word import RULE

# Its colour is that of a verdict: what holds, what changes for the worse, and what cannot be told.
TONES = {"HOLDS": "SUPPORTED", "GROWS": "SUPPORTED", "SHRINKS": "REFUTED", "FLIPS": "REFUTED"}
OPEN = "INCONCLUSIVE"
LEFT = "A rung left what was declared; its own report says in what."


def write(folder: Path, reports: Mapping[str, Report]) -> Path:
    """The ladder of these reports in its folder; returns its page."""
    folder.mkdir(parents=True, exist_ok=True)
    put(folder / LADDER, dumps(plain(build(reports).plain())).encode())
    return render(folder)


def render(folder: Path) -> Path:
    """Renders report.html and ladder.md of the ladder in a folder, from its data alone; returns the page."""
    render_alone(folder)
    list_again(folder)
    return folder / "report.html"


def render_alone(folder: Path) -> None:
    """Renders the files of one ladder; the index of all reports stays as it is."""
    ladder = load(folder)
    put(folder / "ladder.md", markdown(ladder).encode())
    put(folder / "report.html", html(ladder).encode())


def sizes(ladders: Sequence[LadderReport]) -> dict[tuple[str, str, str], str]:
    """What ladders say, by experiment, arm and what it is compared with."""
    said: dict[tuple[str, str, str], list[str]] = {}
    for ladder in ladders:
        ends = f"{ladder.rungs[0].name} to {ladder.rungs[-1].name}"
        ends += ", exploratory" if ladder.exploratory else ""
        for row in ladder.comparisons:
            key = (ladder.experiment, row.arm, row.against)
            rates = ", rates differ" if caution(ladder, row) else ""
            said.setdefault(key, []).append(f"{row.word} ({ends}{rates})")
    return {key: "; ".join(words) for key, words in said.items()}


def agreement(ladders: Sequence[LadderReport]) -> str:
    """Decision accuracy over all ladders, and without exploratory ones; empty without one."""
    told = [_counted(ladders)] if ladders else []
    declared = [ladder for ladder in ladders if not ladder.exploratory]
    if 0 < len(declared) < len(ladders):
        told += [f"Without the exploratory ones: {_counted(declared)}"]
    return " ".join(told)


def _counted(ladders: Sequence[LadderReport]) -> str:
    rows = [claim.verdicts for ladder in ladders for claim in ladder.claims]
    many = "s" if len(ladders) > 1 else ""
    return f"Of {len(ladders)} ladder{many}: {counted(rows).words}"


def lines(ladder: LadderReport) -> list[str]:
    """What a terminal shows of a ladder."""
    says = []
    for row in ladder.comparisons:
        says += [f"  {row.word}: {row.arm} against {row.against}: {row.sentence}"]
        says += [f"  {said}" for said in [caution(ladder, row)] if said]
    left = [f"  EXPLORATORY: {LEFT}"] if ladder.exploratory else []
    return [f"{ladder.name}: does it hold with size?", *left, *says, f"  {ladder.agreement.words}"]


def html(ladder: LadderReport, drawn: Drawn | None = None) -> str:
    """The page; its pictures are drawn here where none are given."""
    sizes = {"": 640, "-narrow": 350}
    made = [
        figure
        for suffix, width in sizes.items()
        for figure in (*figures.effects(ladder, width, suffix), *figures.losses(ladder, width, suffix))
    ]
    places = {figure.name: figure for figure in made}
    drawn = draw([*places.values()]) if drawn is None else drawn
    both = {
        name: [(picture(wide, drawn), picture(places[f"{name}-narrow"], drawn))]
        for name, wide in places.items()
        if not name.endswith("-narrow")
    }
    return (
        environment()
        .get_template("ladder.html")
        .render(
            r=ladder,
            headline=ladder.headline,
            figures=both,
            undrawn=drawn.sentences,
            styles=style(ladder.arms, ladder.baseline),
            tones={row.word: TONES.get(row.word, OPEN) for row in ladder.comparisons},
            rule=RULE,
            rates=rates(ladder),
            caution=caution,
            left=LEFT,
            css=asset("page.css"),
            js=asset("page.js"),
        )
    )


def rates(ladder: LadderReport) -> str:
    """Where the learning rates of the rungs come from."""
    declared = ladder.ladder.rates
    if declared is None:
        return "Each arm's learning rate was tuned at every rung, or is the experiment's."
    return (
        f"Each arm's learning rate is its own at rung {declared.rung}; at the others it is that times the "
        f"ratio of {ladder.baseline}'s training FLOPs to the power {text(declared.power)}."
    )


def caution(ladder: LadderReport, row: Comparison) -> str:
    """That two arms carry different rates to rungs where nobody tuned them; empty where they do not."""
    declared = ladder.ladder.rates
    tuned = next((rung for rung in ladder.rungs if declared and rung.name == declared.rung), None)
    ours, theirs = (tuned.rates.get(arm) if tuned else None for arm in (row.arm, row.against))
    if tuned is None or ours is None or theirs is None or ours == theirs:
        return ""
    return (
        f"Tuned at {tuned.name}, {row.arm} has the learning rate {ours:g} and {row.against} "
        f"{theirs:g}; nobody tuned them at the other rungs, so a part of what is seen there may be the rate."
    )


def markdown(ladder: LadderReport) -> str:
    """ladder.md."""
    lines = [f"# {cell(ladder.name)}: {cell(ladder.headline)}", "", cell(ladder.question or ""), ""]
    lines += [f"**EXPLORATORY**: {LEFT}", ""] if ladder.exploratory else []
    for row in ladder.comparisons:
        joint = f"{cell(row.arm)} against {cell(row.against)}"
        said = " ".join(part for part in (row.sentence, caution(ladder, row)) if part)
        lines += [f"- **{row.word}**, {joint}: {cell(said)}"]
    lines += [""]
    names = [cell(rung.name) for rung in ladder.rungs]
    rows = [
        [
            f"{cell(row.arm)} against {cell(row.against)}",
            *(
                f"{text(effect.mean, 3, sign=True)} {span(effect.low, effect.high, 3)}, {effect.n} seeds"
                for effect in row.effects
            ),
        ]
        for row in ladder.comparisons
    ]
    lines += ["## The effect at each rung", "", *table(["", *names], rows), cell(RULE), ""]
    rows = [[cell(row.says), *(cell(word or NONE) for word in row.verdicts)] for row in ladder.claims]
    lines += ["## Claims", "", *table(["claim", *names], rows), cell(ladder.agreement.words), ""]
    rows = [
        [
            cell(rung.name),
            *(text(value) for value in (rung.parameters, rung.tokens, rung.steps)),
            ", ".join(f"{cell(arm)} {rate:g}" for arm, rate in rung.rates.items()),
            f"{rung.finished} of {rung.planned}",
        ]
        for rung in ladder.rungs
    ]
    lines += [
        "## Rungs",
        "",
        *table(["rung", "parameters", "tokens", "steps", "learning rates", "runs"], rows),
    ]
    lines += [cell(rates(ladder)), "", "```", str(ladder.reproduce.command), "```"]
    return "\n".join(lines) + "\n"
