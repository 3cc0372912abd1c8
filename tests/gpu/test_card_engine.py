"""Sweeps on a GPU: what does not fit, kill -9, more cards than there are, estimates beside what was seen."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from processes import records, wait_until

pytestmark = pytest.mark.timeout(500)

REPOSITORY = Path(__file__).parents[2]
LINE = ("heads=gqa", "seed=0", "data=text", "data.path=book.txt", "logger=none", "sweep.slots=1")
SHAPES = {
    "cuda": ("model.dim=256", "model.n_layers=4", "data.length=256"),
    "cpu": ("model.dim=32", "model.n_layers=2", "data.length=32"),
}
CLOSE = (
    0.01  # nats, between a run that went on and one that was left alone: sums on a card have no fixed order
)


@pytest.fixture
def begun(tmp_path, card):
    """`begun(*words)`: a command over a small text, its output to be read."""
    (tmp_path / "book.txt").write_text("the quick brown fox jumps over the lazy dog; pack my box.\n" * 2000)
    device = f"trainer.accelerator={'gpu' if card == 'cuda' else card}"

    def begin(*words):
        verb = [word for word in words if word in ("plan", "--json")]
        line = [*verb, *LINE, device, *(word for word in words if word not in verb)]
        return subprocess.Popen(
            [sys.executable, "-m", "attnlab", *line], cwd=tmp_path, text=True, start_new_session=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        )  # fmt: skip

    return begin


@pytest.fixture
def told(begun):
    """`told(*words)`: stdout, stderr and exit status of a command that was left alone."""

    def tell(*words):
        process = begun(*words)
        out, err = process.communicate(timeout=400)
        return out, err, process.returncode

    return tell


def test_what_does_not_fit_is_on_record_and_fits_in_parts(told, tmp_path, card):
    if card != "cuda":
        pytest.skip("about the memory of a GPU")
    out, err, code = told("plan", "--json", "size=debug", *SHAPES[card], "data.batch_size=64")
    assert code == 0, err
    taken = json.loads(out)[0]["runs"][0]["forecast"]["bytes"]
    room = torch.cuda.mem_get_info()[1]
    rows = 64 * 2 ** (2 * room // taken).bit_length()  # two to four times what there is room for
    line = ("size=debug", *SHAPES[card], f"data.batch_size={rows}", "trainer.max_steps=1")
    told(*line)
    [record] = records(tmp_path).values()
    assert record["status"] == "out_of_memory"
    out, err, code = told(*line, "sweep.halve_batch=true")
    assert code == 0, out + err
    [record] = records(tmp_path).values()
    assert (record["status"], record["split"] > 1) == ("done", True)


def test_a_killed_run_goes_on_and_ends_close_to_one_left_alone(begun, told, tmp_path, card, record_property):
    line = (
        "size=debug",
        *SHAPES[card],
        "trainer.max_steps=300",
        "sweep.checkpoint_every=20",
        "data.batch_size=8",
    )
    out, err, code = told(*line, "paths.runs=whole/runs")
    assert code == 0, out + err
    process = begun(*line, "paths.runs=broken/runs")
    wait_until(lambda: [*tmp_path.glob("broken/runs/*/last.ckpt")] or process.poll() is not None, 200)
    assert process.poll() is None, "it ended before it saved anything"
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert not [*tmp_path.glob("broken/runs/*/run.json")]
    out, err, code = told(*line, "paths.runs=broken/runs")
    assert code == 0, out + err
    [whole], [broken] = (records(tmp_path / name).values() for name in ("whole", "broken"))
    off = abs(whole["metrics"]["val/loss"] - broken["metrics"]["val/loss"])
    record_property("resumed", broken["resumed"])
    record_property("nats_between_a_run_that_went_on_and_one_left_alone", off)
    assert off <= CLOSE


def test_more_cards_than_there_are_get_one_line(told, card):
    if card != "cuda":
        pytest.skip("about GPUs")
    asked = torch.cuda.device_count() + 1
    _, err, code = told("size=debug", f"trainer.devices={asked}")
    assert (code, len(err.strip().splitlines())) == (2, 1)
    assert f"trainer.devices={asked}" in err


def test_a_plan_is_near_what_is_seen(told, tmp_path, card, record_property):
    line = ("size=debug", *SHAPES[card], "data.batch_size=32", "trainer.max_steps=400")
    assert told(*line, "seed=0")[2] == 0
    out, err, code = told("plan", "--json", *line, "seed=0,1")
    assert code == 0, err
    [forecast] = [run["forecast"] for run in json.loads(out)[0]["runs"] if run["seed"] == 1]
    assert told(*line, "seed=1")[2] == 0
    seen = next(record for record in records(tmp_path).values() if record["seed"] == 1)
    memory = seen["memory"]["peak_cuda_bytes"] or seen["memory"]["peak_rss_bytes"]
    for what, planned, was, factor in (
        ("memory", forecast["bytes"], memory, 1.3), ("time", forecast["seconds"], seen["seconds"], 1.5),
    ):  # fmt: skip
        record_property(f"{what}_planned_to_seen", planned / was)
        assert 1 / factor <= planned / was <= factor, what
