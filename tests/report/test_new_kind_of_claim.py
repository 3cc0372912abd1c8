"""A kind of claim is a class in a registry: one more relation, or one more basis; no other file changes."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from synthetic import World, experiment, provenance, write_runs

from attnlab import stats
from attnlab.report import ledger, lines
from attnlab.report.build import build
from attnlab.report.pages.files import write
from attnlab.report.schema import DeclaredClaim, Report
from attnlab.report.tables.wording import describe_claim
from attnlab.report.verdicts.bases import BASES, Basis
from attnlab.report.verdicts.runs import Sweep
from attnlab.store.declarations import RELATIONS, Claim, Relation

WORLD = World(effects={"mha": 0.0, "gqa": 0.02, "mqa": -0.02}, sd=0.002)


@dataclass(frozen=True)
class Between(Relation):
    """Some cost, but no more than the threshold."""

    name = "between"
    means = "between no difference and the threshold"

    def _region(self, threshold: float, center: float) -> tuple[float, float]:
        return center, threshold

    def conclusions(self, threshold: float, direction: str | None) -> tuple[str, str]:
        return "a cost within the limit", "no cost within the limit"


class Unanimous(Basis):
    """Whether all pairs agree in their sign: evidence without a spread."""

    name = "unanimous"
    counted = "vote"
    shows_training = False

    def applies(self, sweep: Sweep, claim: DeclaredClaim, seeds: Sequence[int]) -> bool:
        return claim.says.startswith("every seed")

    def evidence(
        self, sweep: Sweep, claim: DeclaredClaim, seeds: Sequence[int], design: stats.Design
    ) -> stats.Evidence | None:
        pairs = sweep.pairs(claim.arm, claim.against, claim.metric, seeds)
        return Votes([math.copysign(1.0, pair.value - pair.against) for pair in pairs]) if pairs else None


class Votes:
    """Signs: the interval from the smallest to the largest, p of a coin that came up like this."""

    def __init__(self, signs: Sequence[float]) -> None:
        self.n = len(signs)
        self.estimate = sum(signs) / len(signs)
        self.ends = min(signs), max(signs)

    def interval(self, level: float) -> tuple[float, float] | None:
        return self.ends if 2.0**-self.n < 1 - level else None

    def p_above(self, threshold: float) -> float | None:
        return 2.0**-self.n if self.ends[0] > threshold else 1.0

    def p_below(self, threshold: float) -> float | None:
        return 2.0**-self.n if self.ends[1] < threshold else 1.0


@pytest.fixture
def between(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(RELATIONS, "between", Between())


@pytest.fixture
def unanimous() -> Iterator[None]:
    before = dict(BASES)
    BASES.clear()
    BASES.update({"unanimous": Unanimous(), **before})  # the first that applies decides
    yield
    BASES.clear()
    BASES.update(before)


def report_of(folder: Path, *claims: dict[str, object], seeds: int = 8) -> Report:
    """A report of the claims, rendered: its page, Markdown and ledger are written."""
    world = World(effects=WORLD.effects, sd=WORLD.sd, seeds=list(range(seeds)))
    runs = write_runs(folder / "runs", world)
    report = build(experiment(world, claims=list(claims)), runs, None, provenance())
    write(folder / "reports" / "gqa_vs_mha", report, runs)
    return report


def test_a_relation_is_decided_worded_and_rendered_by_its_class(tmp_path: Path, between: None) -> None:
    cost = {"says": "gqa costs something", "arm": "gqa", "is": "between", "threshold": 0.05}
    gain = {"says": "mqa costs something", "arm": "mqa", "is": "between", "threshold": 0.05}
    report = report_of(tmp_path, cost, gain)
    supported, refuted = report.verdict.claims
    assert (supported.verdict, refuted.verdict) == ("SUPPORTED", "REFUTED")
    assert "threshold +0.05: a cost within the limit (SUPPORTED" in describe_claim(supported)
    assert "threshold +0.05: no cost within the limit (REFUTED" in describe_claim(refuted)
    folder = tmp_path / "reports"
    assert Report.model_validate(report.plain()) == report
    assert "a cost within the limit" in (folder / "gqa_vs_mha/report.md").read_text("utf-8")
    assert "a cost within the limit" in (folder / "gqa_vs_mha/report.html").read_text("utf-8")
    assert "threshold +0.05" in ledger.markdown(lines.read(folder), folder)


def test_an_experiment_file_may_name_the_relation_and_a_threshold_it_cannot_have_is_an_error(
    between: None,
) -> None:
    claim = Claim.model_validate({"says": "s", "arm": "a", "is": "between", "threshold": 0.05})
    assert claim.relation == Between()
    with pytest.raises(ValueError, match="leaves no effect"):
        claim.relation.region(-0.05)


def test_a_basis_collects_its_evidence_and_words_what_it_counts(tmp_path: Path, unanimous: None) -> None:
    claim = {"says": "every seed loses", "arm": "gqa", "is": "above", "threshold": 0.0}
    [result] = report_of(tmp_path, claim).verdict.claims
    assert (result.basis, result.verdict, result.decision.estimate) == ("unanimous", "SUPPORTED", 1.0)
    assert describe_claim(result).endswith("8 votes.")
    page = (tmp_path / "reports/gqa_vs_mha/report.md").read_text("utf-8")
    assert "8 votes" in page
