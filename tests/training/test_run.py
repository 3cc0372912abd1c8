"""One run: deterministic, resumable to the bit, and rejected before it starts if it cannot work."""

import json
import math
import os
import signal
import subprocess
import sys
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from processes import list_children, wait_until
from safetensors.torch import load_file
from sampling import full

from attnlab.data.vocabulary import Vocabulary
from attnlab.store.atomic_files import read_json
from attnlab.training import callbacks, checkpoints, run
from attnlab.training.language_model import DivergenceError
from attnlab.training.trained_model import load_model

torch.set_num_threads(1)


def load_weights(folder):
    return load_file(folder / "model.safetensors")


def assert_same_bits(a, b):
    assert a.keys() == b.keys()
    for name in a:
        assert torch.equal(a[name], b[name]), name


def test_training_is_deterministic_per_seed(compose, make_run_dir):
    once, again, other = (
        make_run_dir(name, compose(f"seed={seed}")) for name, seed in (("a", 3), ("b", 3), ("c", 4))
    )
    for folder in (once, again, other):
        run.run(folder)
    assert_same_bits(load_weights(once), load_weights(again))
    assert read_json(once / "run.json")["metrics"] == read_json(again / "run.json")["metrics"]
    assert not torch.equal(load_weights(once)["embedding.weight"], load_weights(other)["embedding.weight"])


@pytest.mark.parametrize(
    ("accumulate", "every", "more"),  # a checkpoint between two validations, and one at a validation
    [
        (2, 5, ("trainer.precision=64-true",)),
        (1, 6, ("optim=muon", "parametrization=mup")),
        *(pytest.param(*both, (), marks=pytest.mark.rare) for both in ((2, 5), (1, 6), (1, 5), (2, 3))),
        *(
            pytest.param(2, 5, (f"trainer.precision={precision}",), marks=pytest.mark.rare)
            for precision in ("bf16-mixed", "bf16-true")
        ),
    ],
)
def test_a_resumed_run_equals_an_uninterrupted_one(
    compose, make_run_dir, monkeypatch, accumulate, every, more
):
    overrides = [
        "trainer.max_steps=11", "sweep.checkpoint_every=3", "model.dropout=0.1", f"measure.every={every}",
        f"trainer.accumulate_grad_batches={accumulate}", "trainer.log_every_n_steps=2", *more,
    ]  # fmt: skip
    uninterrupted, interrupted = (
        make_run_dir("whole", compose(*overrides)),
        make_run_dir("broken", compose(*overrides)),
    )
    run.run(uninterrupted)

    def stop(self, trainer, *_):
        if trainer.global_step == 8:
            raise KeyError("power cut")

    with monkeypatch.context() as patch:
        patch.setattr(callbacks.ProgressWriter, "on_train_batch_end", stop)
        with pytest.raises(KeyError, match="power cut"):
            run.run(interrupted)
    assert not (interrupted / "run.json").exists()
    assert (interrupted / "last.ckpt").exists()
    assert (interrupted / "previous.ckpt").exists()
    run.run(interrupted)
    assert_same_bits(load_weights(uninterrupted), load_weights(interrupted))
    curves = pq.read_table(uninterrupted / "curves.parquet")
    assert curves.equals(pq.read_table(interrupted / "curves.parquet"))
    if "trainer.precision=64-true" in more:
        losses = [row["value"] for row in curves.to_pylist() if row["name"] == "train/loss"]
        assert any(loss != float(np.float32(loss)) for loss in losses)
        loaded = load_model(interrupted).state_dict()
        assert_same_bits(
            load_weights(interrupted), {name: loaded[name] for name in load_weights(interrupted)}
        )
    a, b = np.load(uninterrupted / "attention.npz"), np.load(interrupted / "attention.npz")
    assert np.array_equal(a["maps"], b["maps"])
    assert np.array_equal(a["steps"], b["steps"])


@pytest.fixture
def make_float64_run_dir(compose, make_run_dir):
    """`make_float64_run_dir(name, *overrides)`: a float64 run, in which the order of sums is negligible."""
    line = ["trainer.precision=64-true", "trainer.max_steps=6", "trainer.accelerator=cpu", "measure.maps=0"]
    return lambda name, *more: make_run_dir(name, compose(*line, *more))


def assert_close(a, b):
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=1e-9, atol=1e-11)


@pytest.mark.rare(sample=1)
@pytest.mark.parametrize("split", [2, 4])
def test_micro_batches_train_the_same_model(make_float64_run_dir, split):
    one_batch, micro_batches = make_float64_run_dir("whole"), make_float64_run_dir("parts")
    spec = read_json(micro_batches / "spec.json")
    (micro_batches / "spec.json").write_text(json.dumps({**spec, "use": {**spec["use"], "split": split}}))
    for folder in (one_batch, micro_batches):
        run.run(folder)
    assert_close(load_weights(one_batch), load_weights(micro_batches))
    assert [read_json(folder / "run.json")["split"] for folder in (one_batch, micro_batches)] == [1, split]


@pytest.mark.rare
@full
@pytest.mark.parametrize("accumulate", [1, 3])
def test_two_devices_train_the_same_model(make_float64_run_dir, tmp_path, accumulate):
    (tmp_path / "names.txt").write_text("bo\nal\nmaximiliane\nu\nida\nwilhelmina\nzo\nea\nkonstantin\nli\n")
    names = ["data=names", f"data.path={tmp_path}/names.txt"] if accumulate > 1 else []  # unequal batches
    line = [*names, f"trainer.accumulate_grad_batches={accumulate}", "trainer.log_every_n_steps=2"]
    one = make_float64_run_dir("one", *line)
    two = make_float64_run_dir("two", *line, "trainer.devices=2", "sweep.checkpoint_every=2")
    run.run(one)
    command = [sys.executable, "-m", "attnlab.sweep.execute.worker", str(two)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200)
    assert process.returncode == 0, process.stdout + process.stderr
    assert_close(load_weights(one), load_weights(two))
    result = read_json(two / "run.json")
    assert math.isclose(result["metrics"]["val/loss"], read_json(one / "run.json")["metrics"]["val/loss"])
    rows = [pq.read_table(folder / "curves.parquet").to_pylist() for folder in (one, two)]
    curves = [{row["step"]: row["value"] for row in each if row["name"] == "train/loss"} for each in rows]
    assert curves[1] == pytest.approx(curves[0], rel=1e-9)


@pytest.mark.rare
def test_a_dead_rank_ends_the_run(make_float64_run_dir, tmp_path):
    folder = make_float64_run_dir("two", "trainer.devices=2", "trainer.max_steps=100000")
    command = [sys.executable, "-m", "attnlab.sweep.execute.worker", str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with (tmp_path / "log").open("w") as log:
        worker = subprocess.Popen(command, env=environment, stderr=log, start_new_session=True)
    try:
        wait_until(lambda: (folder / "progress.json").exists() or worker.poll() is not None, 60)
        assert worker.poll() is None, (tmp_path / "log").read_text()
        lines = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in list_children(worker.pid)}
        [rank] = [pid for pid, line in lines.items() if b"--rank" in line]
        os.kill(rank, signal.SIGKILL)
        assert worker.wait(60) == 1
    finally:
        with suppress(ProcessLookupError):
            os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()


def test_a_truncated_checkpoint_is_replaced_by_the_previous_one(compose, make_run_dir, monkeypatch):
    overrides = ["trainer.max_steps=7", "sweep.checkpoint_every=2"]
    uninterrupted, interrupted = (
        make_run_dir("whole", compose(*overrides)),
        make_run_dir("broken", compose(*overrides)),
    )
    run.run(uninterrupted)

    def stop(self, trainer, *_):
        if trainer.global_step == 6:
            raise KeyError("power cut")

    with monkeypatch.context() as patch:
        patch.setattr(callbacks.ProgressWriter, "on_train_batch_end", stop)
        with pytest.raises(KeyError):
            run.run(interrupted)
    last = interrupted / "last.ckpt"
    last.write_bytes(last.read_bytes()[:1000])
    assert checkpoints.find_newest_checkpoint(interrupted) == interrupted / "previous.ckpt"
    run.run(interrupted)
    assert_same_bits(load_weights(uninterrupted), load_weights(interrupted))


@pytest.mark.rare
@pytest.mark.parametrize("older", [False, True])
def test_a_checkpoint_of_another_run_is_set_aside(compose, make_run_dir, monkeypatch, capfd, older):
    a, b, uninterrupted = (
        make_run_dir(name, compose("trainer.max_steps=4", "sweep.checkpoint_every=2", f"seed={seed}"))
        for name, seed in (("a", 1), ("b", 2), ("whole", 2))
    )
    run.run(uninterrupted)
    with monkeypatch.context() as patch:
        patch.setattr(callbacks.ProgressWriter, "on_train_batch_end", raise_at_step_3)
        with pytest.raises(KeyError):
            run.run(a)
    foreign = torch.load(a / "last.ckpt", weights_only=True)
    if older:  # as written before checkpoints had run ids
        del foreign[checkpoints.RUN_ID_KEY]
    torch.save(foreign, b / "last.ckpt")
    (b / "last.ckpt.foreign").write_text("put aside before")
    moved = (b / "last.ckpt").read_bytes()
    run.run(b)
    assert_same_bits(load_weights(uninterrupted), load_weights(b))
    assert (b / "last.ckpt.foreign2").read_bytes() == moved
    assert (b / "last.ckpt.foreign").read_text() == "put aside before"
    lines = [line for line in capfd.readouterr().out.splitlines() if "last.ckpt" in line]
    assert len(lines) == 1
    assert ("has no run id" if older else f"belongs to run {a.name}:") in lines[0]


def raise_at_step_3(self, trainer, *_):
    if trainer.global_step == 3:
        raise KeyError("power cut")


def test_the_result_has_metrics_memory_curves_and_maps(compose, make_run_dir, tmp_path):
    folder = make_run_dir("run", compose("heads=gqa", "trainer.max_steps=6", "measure.every=4"))
    run.run(folder)
    result = json.loads((folder / "run.json").read_text())
    assert result["status"] == "done"
    assert math.isfinite(result["metrics"]["val/loss"])
    bits = result["metrics"]["val/bits_per_byte"]  # most characters are one byte
    assert 0.98 < bits * math.log(2) / result["metrics"]["val/loss"] <= 1
    assert result["estimate"]["metric_definitions"]["val/bits_per_byte"]["unit"] == "bits"
    memory = result["memory"]
    # two layers x (k and v) x 2 KV heads x 4 features x 4 bytes
    assert memory["kv_bytes_per_token_live"] == memory["kv_bytes_per_token_formula"] == 2 * 2 * 2 * 4 * 4
    assert memory["saved_for_backward_bytes"] > 0
    assert memory["peak_rss_bytes"] > 1e7
    assert result["estimate"]["tokens"] == 6 * 4 * 16
    assert result["kernels"]["max_abs_eager_fused"] < 1e-5
    assert len(result["by_position"]["val/loss"]) == 16
    maps = np.load(folder / "attention.npz")
    assert maps["steps"].tolist() == [0, 2, 4, 6]
    assert maps["maps"].shape == (4, 2, 4, 16, 16)
    assert maps["groups"].tolist() == [[0, 0, 1, 1]] * 2
    assert not maps["maps"][:, :, :, ~np.tril(np.ones((16, 16), bool))].any()
    curves = pq.read_table(folder / "curves.parquet").to_pydict()
    validations = [s for s, n in zip(curves["step"], curves["name"], strict=True) if n == "val/loss"]
    assert validations == [4, 6]
    vocabulary = json.loads((folder / "vocabulary.json").read_text())
    assert vocabulary == {"kind": "char", "state": "".join(sorted({*(tmp_path / "book.txt").read_text()}))}
    assert result["files"]["vocabulary.json"] == sha256((folder / "vocabulary.json").read_bytes()).hexdigest()
    assert result["estimate"]["data"]["vocabulary"] == Vocabulary(**vocabulary).compute_digest()


@pytest.mark.parametrize("pack", [1, 3])
def test_attention_maps_of_names_show_one_name(compose, make_run_dir, tmp_path, pack):
    names = ["bo", "al", "maximiliane", "ida", "wilhelmina", "zo", "ea", "konstantin", "li", "u"]
    (tmp_path / "names.txt").write_text("\n".join(names))
    line = ["data=names", f"data.path={tmp_path}/names.txt", f"data.pack={pack}", "data.val_fraction=0.3"]
    folder = make_run_dir("run", compose(*line, "trainer.max_steps=2"))
    run.run(folder)
    with np.load(folder / "attention.npz") as stored:
        name = "".join(stored["tokens"][1:])
        assert name in names
        assert stored["maps"].shape[3:] == (len(name) + 1, len(name) + 1)


@pytest.mark.rare(sample=2)
@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true", "64-true"])
def test_other_precisions_train(compose, make_run_dir, precision):
    folder = make_run_dir("run", compose(f"trainer.precision={precision}", "trainer.max_steps=3"))
    run.run(folder)
    record = read_json(folder / "run.json")
    assert record["estimate"]["dtype"] == precision
    assert record["estimate"]["kv_bytes_per_token"] == record["memory"]["kv_bytes_per_token_live"]
    assert 3 < record["metrics"]["val/loss"] < 4


@pytest.mark.rare(sample=1)
@pytest.mark.parametrize("choice", ["model=lstm", "position=rope_dynamic_ntk", "mask=full"])
def test_models_without_a_cache_train(compose, make_run_dir, choice):
    folder = make_run_dir("run", compose(choice, "trainer.max_steps=2"))
    run.run(folder)
    assert read_json(folder / "run.json")["status"] == "done"


def test_a_clipped_gradient_has_the_limit_as_norm(compose):
    config = compose()
    module = run.instantiate_config(config["optim"], model=run.build_model(config, 31))
    batch = {"tokens": torch.arange(22).view(2, 11), "targets": torch.arange(1, 23).view(2, 11)}
    module.losses(batch).sum().backward()
    optimizer, _ = module.optimizer(1)
    module.configure_gradient_clipping(optimizer, 0.5)
    total = torch.stack([p.grad.norm() for p in module.model.parameters()]).norm()
    assert total.item() == pytest.approx(0.5, rel=1e-4)


def test_a_nonfinite_loss_stops_the_run_with_its_step(compose, make_run_dir):
    folder = make_run_dir(
        "run",
        compose("optim.lr=1e30", "optim.warmup=0", "trainer.gradient_clip_val=null", "trainer.max_steps=9"),
    )
    with pytest.raises(DivergenceError, match="not finite at step"):
        run.run(folder)


INVALID = {
    "a window that no layer has": (["+model.window=64"], "model.window=64 has no effect"),
    "a window of no tokens": (["layers=local_global", "model.window=0"], "window needs size >= 1"),
    "patches that no layer takes": (["layers=yoco"], "model.layers has 4 patches for only 2 layers"),
    "a rotation that no layer has": (
        ["layers=nope_global", "position=alibi"],
        r"model.layers\[1\] removes rotary, which the layers do not have: .* position=rope",
    ),
    "heads do not divide the width": (
        ["model.n_heads=3"],
        "n_heads=3 does not divide dim=16: change model.n_heads",
    ),
    "KV heads do not divide the heads": (
        ["model.attention.heads.n_kv_heads=3"],
        "n_kv_heads=3 does not divide n_heads=4",
    ),
    "odd rotary width": (["model.dim=12", "model.n_heads=4"], "RoPE needs an even number of features"),
    "non-finite learning rate": (["optim.lr=nan"], "optim.lr must be a finite number"),
    "no steps": (["trainer.max_steps=0"], "trainer.max_steps must be an integer from 1"),
    "half precision": (
        ["trainer.precision=16-mixed"],
        "trainer.precision must be 32-true, .* needs loss scaling",
    ),
    "no such device": (["trainer.accelerator=gpu"], "trainer.accelerator=gpu needs a CUDA device"),
    "softcap through sdpa": (["score=softcap"], "kernel=sdpa supports only additive scores"),
    "sinks through sdpa": (["epilogue=sinks"], "kernel=sdpa does not return lse"),
    "weights dropout through flex": (["kernel=flex"], "no backward pass on a CPU"),
    "a key that the constructor does not have": (["+model.attention.heads.wings=2"], "wings"),
    "qk_norm on latent heads": (["heads=mla", "score=qk_norm"], "heads=mla has no per-head keys"),
}


@pytest.mark.parametrize("case", INVALID)
def test_invalid_configs_are_rejected_in_one_line(compose, case):
    overrides, message = INVALID[case]
    if case == "no such device" and torch.cuda.is_available():
        pytest.skip("there is a CUDA device here")
    with pytest.raises(ValueError, match=message) as caught:
        run.check(compose(*overrides))
    assert "\n" not in str(caught.value)
