"""The terminal summary of a report: headline, answer, claims, and arms that see future tokens."""

from collections.abc import Iterator

from attnlab.report.answer import build_answer
from attnlab.report.schema import EffectVerdict, Report
from attnlab.report.tables.headline import build_headline
from attnlab.report.tables.wording import DELTA, describe_claim, find_claim_effect, format_effect


def format_terminal_lines(report: Report) -> Iterator[str]:
    """One line each, the headline first; without an experiment file also the effects."""
    context = f" ({report.replication.name})" if report.replication and not report.corpora else ""
    yield f"{build_headline(report)}{context}: {report.experiment.question or report.experiment.name}"
    yield build_answer(report).sentence
    for claim in report.verdict.claims:
        yield f"  {describe_claim(claim, find_claim_effect(claim, report.effects))}"
    for effect in report.effects if report.verdict.not_preregistered else ():
        prefix = f"  {effect.arm} vs {effect.against}"
        if effect.primary and effect.mean is not None:
            yield f"{prefix}: {DELTA} {effect.label} = {format_effect(effect)}"
        elif effect.primary and effect.verdict == EffectVerdict.NOT_COMPARABLE:
            yield f"{prefix}: NOT COMPARABLE: {'; '.join(effect.reasons)}"
    if leakage := report.leakage:
        yield from (f"  {note}" for note in leakage.notes)
        if leakage.checked and not leakage.notes:
            yield f"  no arm sees future tokens ({len(leakage.checked)} checked)"
