"""Comparability of attnlab's own run directories, by the checks that arms of a sweep get."""

from collections.abc import Sequence

from attnlab.errors import InvalidConfig
from attnlab.external.result_files import ExternalRun
from attnlab.report.verdicts.budget_check import build_budget_check
from attnlab.report.verdicts.comparability import list_incomparability_reasons
from attnlab.report.verdicts.results import Run, SweepContext, SweepResults
from attnlab.store.experiment_schema import Experiment
from attnlab.store.fingerprint import flatten_config, strip_seeds
from attnlab.store.run_schema import RunResult

ARMS = ("A", "B")


def list_incomparable(sides: Sequence[Sequence[ExternalRun]], metric: str) -> list[str]:
    """List the reasons against comparing A and B; [] if there is none, or a side is of another program.

    Tokens are controlled, as in every comparison of `judge`.

    Raises:
        InvalidConfig: one side holds runs of several configs.
    """
    results = [[run.result for run in side if run.result is not None] for side in sides]
    if not all(results):
        return []
    for arm, own in zip(ARMS, results, strict=True):
        _require_one_config(arm, own)
    experiment = Experiment.model_validate(
        {
            "name": "judge", "arms": [*ARMS], "baseline": ARMS[0], "metric": metric, "margin": 0.0,
            "margin_reason": "", "controlled": ["tokens"], "seeds": [*range(max(map(len, results)))],
        }
    )  # fmt: skip
    runs = [
        Run(arm, number, result.id, result)
        for arm, own in zip(ARMS, results, strict=True)
        for number, result in enumerate(own)
    ]
    sweep = SweepResults(SweepContext(experiment), runs)
    reasons = list_incomparability_reasons(sweep, build_budget_check(sweep), ARMS[1], ARMS[0], metric)
    return [reason.text for reason in reasons]


def _require_one_config(arm: str, results: Sequence[RunResult]) -> None:
    """Raise InvalidConfig if the runs of one side differ in more than their seeds."""
    first, *others = (dict(flatten_config(strip_seeds(result.config))) for result in results)
    for other in others:
        if differing := sorted(
            key for key in first.keys() | other.keys() if first.get(key) != other.get(key)
        ):
            key = differing[0]
            raise InvalidConfig(
                f"{arm}: holds runs of several configs ({key} is {first.get(key)} and {other.get(key)}): "
                "give a folder for each"
            )
