"""Sweeps on a GPU: out of memory, kill -9, too many devices, and estimates against measurements."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from processes import load_records, wait_until

pytestmark = pytest.mark.timeout(500)

REPOSITORY = Path(__file__).parents[2]
LINE = (
    "heads=gqa", "data=text", "data.path=book.txt", "data.allow_overlap=true", "logger=none", "sweep.slots=1",
)  # fmt: skip
SHAPES = {
    "cuda": ("model.dim=256", "model.n_layers=4", "data.length=256"),
    "cpu": ("model.dim=32", "model.n_layers=2", "data.length=32"),
}
CLOSE = 0.01  # nats between a resumed and an undisturbed run: sums on a GPU have no fixed order


@pytest.fixture
def start_command(tmp_path, card):
    """`start_command(*words)`: start a command over a small text with piped output."""
    (tmp_path / "book.txt").write_text("the quick brown fox jumps over the lazy dog; pack my box.\n" * 2000)
    device = f"trainer.accelerator={'gpu' if card == 'cuda' else card}"

    def start(*words):
        plan_words = [word for word in words if word in ("plan", "--json")]
        seeds = () if any(word.startswith("seed=") for word in words) else ("seed=0",)
        line = [*plan_words, *LINE, *seeds, device, *(word for word in words if word not in plan_words)]
        search_path = os.pathsep.join([str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])])
        return subprocess.Popen(
            [sys.executable, "-m", "attnlab", *line], cwd=tmp_path, text=True, start_new_session=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "PYTHONPATH": search_path},
        )  # fmt: skip

    return start


@pytest.fixture
def run_command(start_command):
    """`run_command(*words)`: run a command to its end; return stdout, stderr and exit status."""

    def run(*words):
        process = start_command(*words)
        out, err = process.communicate(timeout=400)
        return out, err, process.returncode

    return run


def test_out_of_memory_is_recorded_and_halved_batches_fit(run_command, tmp_path, card):
    if card != "cuda":
        pytest.skip("about the memory of a GPU")
    out, err, code = run_command("plan", "--json", "size=debug", *SHAPES[card], "data.batch_size=64")
    assert code == 0, err
    needed_bytes = json.loads(out)[0]["runs"][0]["forecast"]["bytes"]
    total_memory = torch.cuda.mem_get_info()[1]
    rows = 64 * 2 ** (2 * total_memory // needed_bytes).bit_length()  # two to four times the available memory
    line = ("size=debug", *SHAPES[card], f"data.batch_size={rows}", "trainer.max_steps=1")
    run_command(*line)
    [record] = load_records(tmp_path).values()
    assert record["status"] == "out_of_memory"
    out, err, code = run_command(*line, "sweep.halve_batch=true")
    assert code == 0, out + err
    [record] = load_records(tmp_path).values()
    assert (record["status"], record["split"] > 1) == ("done", True)


def test_killed_run_resumes_close_to_an_undisturbed_one(
    start_command, run_command, tmp_path, card, record_property
):
    line = (
        "size=debug",
        *SHAPES[card],
        "trainer.max_steps=300",
        "sweep.checkpoint_every=20",
        "data.batch_size=8",
    )
    out, err, code = run_command(*line, "paths.runs=whole/runs")
    assert code == 0, out + err
    process = start_command(*line, "paths.runs=broken/runs")
    wait_until(lambda: [*tmp_path.glob("broken/runs/*/last.ckpt")] or process.poll() is not None, 200)
    assert process.poll() is None, "it ended before it saved anything"
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert not [*tmp_path.glob("broken/runs/*/run.json")]
    out, err, code = run_command(*line, "paths.runs=broken/runs")
    assert code == 0, out + err
    [undisturbed], [resumed] = (load_records(tmp_path / name).values() for name in ("whole", "broken"))
    difference = abs(undisturbed["metrics"]["val/loss"] - resumed["metrics"]["val/loss"])
    record_property("resumed", resumed["resumed"])
    record_property("nats_between_a_run_that_went_on_and_one_left_alone", difference)
    assert difference <= CLOSE


def test_too_many_devices_are_one_line(run_command, card):
    if card != "cuda":
        pytest.skip("about GPUs")
    n_devices = torch.cuda.device_count() + 1
    _, err, code = run_command("size=debug", f"trainer.devices={n_devices}")
    assert (code, len(err.strip().splitlines())) == (2, 1)
    assert f"trainer.devices={n_devices}" in err


def test_estimates_are_close_to_measurements(run_command, tmp_path, card, record_property):
    line = ("size=debug", *SHAPES[card], "data.batch_size=32", "trainer.max_steps=400")
    assert run_command(*line, "seed=0")[2] == 0
    out, err, code = run_command("plan", "--json", *line, "seed=0,1")
    assert code == 0, err
    [forecast] = [run["forecast"] for run in json.loads(out)[0]["runs"] if run["seed"] == 1]
    assert run_command(*line, "seed=1")[2] == 0
    record = next(record for record in load_records(tmp_path).values() if record["seed"] == 1)
    memory = record["memory"]["peak_cuda_bytes"] or record["memory"]["peak_rss_bytes"]
    for quantity, estimate, measured, factor in (
        ("memory", forecast["bytes"], memory, 1.3), ("time", forecast["seconds"], record["seconds"], 1.5),
    ):  # fmt: skip
        record_property(f"{quantity}_planned_to_seen", estimate / measured)
        assert 1 / factor <= estimate / measured <= factor, quantity
