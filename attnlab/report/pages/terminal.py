"""What a terminal shows of a report: its headline, the answer, its claims, and who sees future tokens."""

from collections.abc import Iterator

from attnlab.report.answer import answer
from attnlab.report.schema import Report, Word
from attnlab.report.tables.wording import DELTA, describe_claim, format_effect


def lines(report: Report) -> Iterator[str]:
    """A line each, the headline first; of a sweep without an experiment its effects too."""
    place = f" ({report.place.name})" if report.place else ""
    yield f"{report.verdict.headline}{place}: {report.experiment.question or report.experiment.name}"
    yield answer(report).sentence
    yield from (f"  {describe_claim(claim)}" for claim in report.verdict.claims)
    for effect in report.effects if report.verdict.undeclared else ():
        about = f"  {effect.arm} vs {effect.against}"
        if effect.primary and effect.mean is not None:
            yield f"{about}: {DELTA} {effect.label} = {format_effect(effect)}"
        elif effect.primary and effect.word == Word.NOT_COMPARABLE:
            yield f"{about}: NOT COMPARABLE: {'; '.join(effect.reasons)}"
    if leakage := report.leakage:
        yield from (f"  {note}" for note in leakage.notes)
        if leakage.checked and not leakage.notes:
            yield f"  no arm sees future tokens ({len(leakage.checked)} checked)"
