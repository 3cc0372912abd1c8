"""A run that went on from a checkpoint says on its page how close it comes to what it was."""

import pytest
from synthetic import World, but, experiment, provenance, write_runs

from attnlab.report.build import build


@pytest.mark.parametrize(
    ("device", "off", "told"),
    [
        ("cuda", 0.002, ["the loss was 0.002 nats off"]), ("cuda", 0.0, ["the loss was 0 nats off"]),
        ("cuda", None, ["no step was trained twice"]), ("cpu", 0.0, []), ("cpu", None, []),
        ("cpu", 0.1, ["the loss was 0.1 nats off"]),
    ],
)  # fmt: skip
def test_a_run_that_went_on_elsewhere_says_how_close_it_comes(tmp_path, device, off, told) -> None:
    runs = write_runs(tmp_path, World())
    rows = ({"step": 3, "again": 4, "off": off}, {"step": 9, "again": 0, "off": None})
    runs[0] = but(runs[0], resumed=rows, environment=runs[0].record.environment | {"device": device})
    found = build(experiment(World()), runs, None, provenance()).warnings
    found = [warning for warning in found if "checkpoint" in warning]
    assert len(found) == len(told)
    assert all(words in warning for words, warning in zip(told, found, strict=True))
