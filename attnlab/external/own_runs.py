"""Budgets and comparability of attnlab's own run directories, by the checks that arms of a sweep get."""

from collections.abc import Mapping, Sequence

from attnlab.errors import InvalidConfig
from attnlab.external.result_files import ExternalRun
from attnlab.report.schema import BudgetCheck
from attnlab.report.verdicts.budget_check import build_budget_check
from attnlab.report.verdicts.comparability import list_incomparability_reasons
from attnlab.report.verdicts.results import Run, SweepContext, SweepResults
from attnlab.store.experiment_schema import Experiment
from attnlab.store.fingerprint import flatten_config, strip_seeds
from attnlab.store.run_schema import RunResult


def check_own_runs(
    sides: Mapping[str, Sequence[ExternalRun]], metric: str
) -> tuple[list[str], BudgetCheck] | None:
    """Check the runs of two arms, the baseline first.

    Tokens are controlled, as in every comparison of `judge`.

    Returns:
        The reasons against comparing them, and their budgets; None if a side is of another program.

    Raises:
        InvalidConfig: one side holds runs of several configs.
    """
    results = {arm: [run.result for run in side if run.result is not None] for arm, side in sides.items()}
    if not all(results.values()):
        return None
    for arm, own in results.items():
        _require_one_config(arm, own)
    against, arm = results
    experiment = Experiment.model_validate(
        {
            "name": "judge", "arms": [against, arm], "baseline": against, "metric": metric, "margin": 0.0,
            "margin_reason": "", "controlled": ["tokens"],
            "seeds": [*range(max(map(len, results.values())))],
        }
    )  # fmt: skip
    runs = [
        Run(name, number, result.id, result)
        for name, own in results.items()
        for number, result in enumerate(own)
    ]
    sweep = SweepResults(SweepContext(experiment), runs)
    budget = build_budget_check(sweep)
    reasons = list_incomparability_reasons(sweep, budget, arm, against, metric)
    return [reason.text for reason in reasons], budget


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
