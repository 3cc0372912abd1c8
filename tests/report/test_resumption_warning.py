"""A resumed run reports how closely it reproduces the original."""

import pytest
from rendering import make_report
from synthetic import World, replace_result, write_runs


@pytest.mark.parametrize(
    ("device", "error", "expected"),
    [
        ("cuda", 0.002, ["differed by 0.002 nats"]), ("cuda", 0.0, ["differed by 0 nats"]),
        ("cuda", None, ["no step was trained twice"]), ("cpu", 0.0, []), ("cpu", None, []),
        ("cpu", 0.1, ["differed by 0.1 nats"]),
    ],
)  # fmt: skip
def test_resumed_run_reports_its_deviation(tmp_path, device, error, expected) -> None:
    runs = write_runs(tmp_path, World())
    rows = ({"step": 3, "again": 4, "off": error}, {"step": 9, "again": 0, "off": None})
    runs[0] = replace_result(
        runs[0], resumed=rows, environment=runs[0].result.environment | {"device": device}
    )
    warnings = make_report(runs).warnings
    warnings = [warning for warning in warnings if "checkpoint" in warning]
    assert len(warnings) == len(expected)
    assert all(text in warning for text, warning in zip(expected, warnings, strict=True))
