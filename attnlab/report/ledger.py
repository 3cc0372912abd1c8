"""The ledger: a line for every claim of a folder of reports, beside what its source says, as Markdown and as
a page with filters.

A pure function of the report.json files and of the experiment files. Surprising: a claim's words, source and
reason come from its file as it is now (`tables/claimed.py`), so that they can be mended without training
anything again.
"""

from collections.abc import Sequence
from pathlib import Path

from attnlab.report import ladder as ladder_files
from attnlab.report.across import page
from attnlab.report.lines import Ledger, Line, Ran, read, tally, totals
from attnlab.report.pages.files import put, refresh
from attnlab.report.pages.html import asset, environment
from attnlab.report.tables.format import percent
from attnlab.report.tables.wording import LEVEL

MARK = "python -m attnlab report"  # the command that makes both pages
OURS = ("makes it from the reports beside it", f'name="generator" content="{MARK}')  # words of theirs alone
HEAD = """# Ledger

Every claim that was put to the test, what its source says, and what was found here. `{mark} {folder}`
makes it from the reports beside it, with a page for each report; ledger.html is the same table with filters.
The project's README says how to read a verdict. Documents 000 to 004 are the introductions to attention whose
claims the suite began from; papers are named by author, year and arXiv number.

{totals}
"""
ABOUT = ("experiment", "claim", "what is asked")
CITED = ("source", "what it says", "verdict here")
HYPOTHESES = """
## Hypotheses

What could have come out otherwise: {tally}. Beside each effect stands its {level} % interval; what decided is
the interval at the level that was left to the claim among those of its report. Of what is open stands how
many seeds would decide it in four of five such sweeps, if the truth is as it was seen, and how long these
would train, one run at a time, which is what was not paid; more seeds than were declared are another
experiment, on seeds that nobody has seen.
"""
DISPUTED = """
## Where sources disagree

Both sides, and what was found here.
"""
IDENTITIES = """
## Identities

What holds by construction, a count, an equality or a theorem: {tally}. They fail only through a bug.
"""
RUN = """
## What was run
"""
OUTDATED = "OUTDATED.md"
OUTDATED_NOTE = """Code that alters numbers has changed since some reports were made:
[OUTDATED.md](OUTDATED.md) lists them with the changes.
"""
NOISE = """
## Where nothing differs

The {runs} different runs of `aa_null`, dealt at random into pairs {rounds} times: how often each rule accepts
what is false (a difference of nothing, or of just the margin). Nominal are 5 % at most. So few runs leave the
rate uncertain: a rule would fail where its lower bound, over bootstrap samples of the runs, were above 5 %.
"""


def write(folder: Path) -> list[Path]:
    """README.md and ledger.html beside the reports, and their index. ValueError where there is no report, one
    that cannot be read, or a page of somebody else's in the place of one of ours.
    """
    ladders = [ladder_files.load(source.parent) for source in sorted(folder.glob(f"*/{ladder_files.LADDER}"))]
    ledger = read(folder, page.sizes(ladders), page.agreement(ladders))
    pages = {folder / "README.md": markdown(ledger, folder), folder / "ledger.html": html(ledger, folder)}
    for path in pages:
        head = " ".join(path.read_text("utf-8", errors="replace")[:900].split()) if path.exists() else OURS[0]
        if not any(text in head for text in OURS):
            raise ValueError(f"{path}: is no ledger, and one would replace it; move it out of the way")
    for path, content in pages.items():
        put(path, content.encode())
    refresh(folder)
    return list(pages)


def markdown(ledger: Ledger, folder: Path) -> str:
    """README.md."""
    hypotheses = ledger.of(identity=False)
    identities = ledger.of(identity=True)
    noise = ledger.noise
    parts = [
        HEAD.format(mark=MARK, folder=folder.as_posix(), totals=totals(ledger)),
        HYPOTHESES.format(tally=tally(hypotheses), level=percent(LEVEL)),
        f"{ledger.agreement}\n" if ledger.agreement else "",
        _table(
            (
                *ABOUT,
                "why there",
                *CITED,
                f"effect [{percent(LEVEL)} %]",
                "decided on",
                "seeds",
                "with size",
                "on other texts",
            ),
            [
                (
                    *_about(line),
                    line.reason,
                    *_cited(line),
                    _effect(line),
                    line.decided,
                    line.seeds,
                    line.sizes,
                    line.texts,
                )
                for line in hypotheses
            ],
        ),
        *_disputed(hypotheses),
        IDENTITIES.format(tally=tally(identities)),
        _table(
            (*ABOUT, *CITED, "found", "seeds"),
            [(*_about(line), *_cited(line), line.effect, line.seeds) for line in identities],
        ),
        RUN,
        OUTDATED_NOTE if (folder / OUTDATED).exists() else "",
        _table(
            ("experiment", "question", "cost", "command", "made by commit"),
            [
                (_link(ran), ran.question, ran.cost, f"`{ran.command}`", f"`{ran.commit}`")
                for ran in ledger.ran
            ],
        ),
    ]
    if noise:
        rules = _table(("rule", "accepts what is false", "lower bound"), noise.rules)
        parts += [NOISE.format(runs=noise.runs, rounds=noise.rounds), rules]
    return "\n".join(parts)


def _disputed(lines: Sequence[Line]) -> list[str]:
    """What is claimed and what another source says instead; nothing where no source is known to."""
    rows = [
        (
            *(_link(line), line.says, f"{'; '.join(line.sources)}: {line.source_says}", line.other),
            *(line.verdict, _effect(line), line.sizes),
        )
        for line in lines
        if line.other
    ]
    head = ("experiment", "claim", "source", "and another", "verdict here", "effect", "with size")
    return [DISPUTED, _table(head, rows)] if rows else []


def _effect(line: Line) -> str:
    return f"{line.effect}; equivalent to {line.training}" if line.training else line.effect


def _about(line: Line) -> tuple[str, ...]:
    return _link(line), line.says, line.asked


def _cited(line: Line) -> tuple[str, ...]:
    verdict = line.verdict + (" (exploratory)" if line.exploratory else "")
    return "; ".join(line.sources), line.source_says, verdict


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    # each value is one line that ends no cell
    cells = [[" ".join(value.split()).replace("|", "\\|") for value in row] for row in rows]
    lines = [head, ["---"] * len(head), *cells]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def _link(line: Line | Ran) -> str:
    return f"[{line.experiment}]({line.folder}/report.md)"


def html(ledger: Ledger, folder: Path) -> str:
    """ledger.html: the same lines with filters, which a script adds; without one all lines are shown."""
    choices = {
        "axis": {line.axis for line in ledger.lines},
        "verdict": {line.verdict for line in ledger.lines},
        "source": {source for line in ledger.lines for source in line.sources},
    }
    return (
        environment()
        .get_template("ledger.html")
        .render(
            ledger=ledger,
            totals=totals(ledger),
            tally=tally,
            level=percent(LEVEL),
            mark=MARK,
            command=f"{MARK} {folder.as_posix()}",
            choices={name: sorted(values) for name, values in choices.items()},
            css=[asset("page.css"), asset("ledger.css")],
            js=[asset("page.js"), asset("ledger.js")],
        )
    )
