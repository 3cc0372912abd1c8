"""A kind of claim is a class in a registry: one more relation or basis changes no other file."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import ledger
import pytest
from rendering import make_report
from synthetic import World, declare_claim, write_runs

from attnlab import stats
from attnlab.report.pages.report_files import write_report
from attnlab.report.schema import PreregisteredClaim, Report
from attnlab.report.tables.wording import describe_claim
from attnlab.report.verdicts.evidence_bases import BASES, Basis
from attnlab.report.verdicts.results import SweepResults
from attnlab.store.experiment_schema import RELATIONS, Claim, Relation

WORLD = World(effects={"mha": 0.0, "gqa": 0.02, "mqa": -0.02}, sd=0.002)


@dataclass(frozen=True)
class Between(Relation):
    """A cost above zero and below the threshold."""

    name = "between"
    description = "between no difference and the threshold"

    def _compute_bounds(self, threshold: float, center: float) -> tuple[float, float]:
        return center, threshold

    def format_conclusions(self, threshold: float, direction: str | None) -> tuple[str, str]:
        return "a cost within the limit", "no cost within the limit"


class Unanimous(Basis):
    """Whether all pairs have the same sign: evidence without a spread."""

    name = "unanimous"
    unit_name = "vote"
    requires_training = False

    def can_decide(self, sweep: SweepResults, claim: PreregisteredClaim, seeds: Sequence[int]) -> bool:
        return claim.says.startswith("every seed")

    def collect_evidence(
        self, sweep: SweepResults, claim: PreregisteredClaim, seeds: Sequence[int], design: stats.StoppingRule
    ) -> stats.Evidence | None:
        pairs = sweep.build_pairs(claim.weights, claim.metric, seeds)
        return Votes([math.copysign(1.0, pair.value - pair.against) for pair in pairs]) if pairs else None


class Votes:
    """Signs: the interval spans smallest to largest; p is that of fair coin flips."""

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
def between_relation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(RELATIONS, "between", Between())


@pytest.fixture
def unanimous_basis() -> Iterator[None]:
    before = dict(BASES)
    BASES.clear()
    BASES.update({"unanimous": Unanimous(), **before})  # the first that applies decides
    yield
    BASES.clear()
    BASES.update(before)


def write_claims_report(folder: Path, *claims: dict[str, object], seeds: int = 8) -> Report:
    """A report of the claims, rendered: its page, Markdown and ledger are written."""
    world = World(effects=WORLD.effects, sd=WORLD.sd, seeds=list(range(seeds)))
    runs = write_runs(folder / "runs", world)
    report = make_report(runs, world, claims=list(claims))
    write_report(folder / "reports" / "gqa_vs_mha", report, runs)
    return report


def test_new_relation_is_decided_worded_and_rendered(tmp_path: Path, between_relation: None) -> None:
    cost = declare_claim("gqa costs something", "gqa", "between", 0.05)
    gain = declare_claim("mqa costs something", "mqa", "between", 0.05)
    report = write_claims_report(tmp_path, cost, gain)
    supported, refuted = report.verdict.claims
    assert (supported.verdict, refuted.verdict) == ("SUPPORTED", "REFUTED")
    assert "threshold +0.05: a cost within the limit (SUPPORTED" in describe_claim(supported)
    assert "threshold +0.05: no cost within the limit (REFUTED" in describe_claim(refuted)
    folder = tmp_path / "reports"
    assert Report.model_validate(report.to_dict()) == report
    assert "a cost within the limit" in (folder / "gqa_vs_mha/report.md").read_text("utf-8")
    assert "a cost within the limit" in (folder / "gqa_vs_mha/report.html").read_text("utf-8")
    assert "threshold +0.05" in ledger.write_ledger(folder)[0].read_text("utf-8")


def test_experiment_file_may_use_a_new_relation_with_a_valid_threshold(
    between_relation: None,
) -> None:
    claim = Claim.model_validate(declare_claim("s", "a", "between", 0.05))
    assert claim.relation == Between()
    with pytest.raises(ValueError, match="no effect can satisfy"):
        claim.relation.compute_region(-0.05)


def test_new_basis_collects_evidence_and_names_its_unit(tmp_path: Path, unanimous_basis: None) -> None:
    claim = declare_claim("every seed loses", "gqa", "above", 0.0)
    [result] = write_claims_report(tmp_path, claim).verdict.claims
    assert (result.basis, result.verdict, result.decision.estimate) == ("unanimous", "SUPPORTED", 1.0)
    assert describe_claim(result).endswith("8 votes.")
    page = (tmp_path / "reports/gqa_vs_mha/report.md").read_text("utf-8")
    assert "8 votes" in page
