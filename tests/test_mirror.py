"""What a run leaves for W&B, read back through wandb's own message classes from the offline file."""

import json
import struct

import pytest
import torch

from attnlab import mirror, train

torch.set_num_threads(1)


def records(path):
    """The messages of a .wandb file: LevelDB's log format, blocks of 32 KiB, 7-byte headers."""
    from wandb.proto import wandb_internal_pb2

    data, at, parts = path.read_bytes(), 7, []
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        parts.append(data[at + 7 : at + 7 + length])
        at += 7 + length
        if kind in (1, 4):  # whole, or last part
            record = wandb_internal_pb2.Record()
            record.ParseFromString(b"".join(parts))
            yield record
            parts = []


def test_an_offline_run_holds_losses_memory_config_and_images(compose, store):
    config = compose("logger=wandb", "trainer.max_steps=6", "measure.every=3", "trainer.log_every_n_steps=2")
    folder = store("abcd0123abcd0123", config)
    use, semantic = {"experiment": "exam", "arm": "gqa"}, {"config": {"model": {"dim": 16}}}
    spec = {"schema": 1, "id": folder.name, "config": config, "semantic": semantic, "use": use}
    (folder / "spec.json").write_text(json.dumps(spec))
    train.run(folder)
    (file,) = folder.glob("wandb/offline-run-*/*.wandb")
    found = list(records(file))
    (run,) = [record.run for record in found if record.WhichOneof("record_type") == "run"][:1]
    assert (run.run_id, run.run_group, run.job_type) == ("abcd0123abcd0123", "exam", "gqa")
    assert {"exam", "gqa"} <= set(run.tags)
    assert "model" in {item.key for item in run.config.update}
    history = [
        {".".join(item.nested_key) or item.key: item.value_json for item in record.history.item}
        for record in found
        if record.WhichOneof("record_type") == "history"
    ]
    losses = [float(row["val/loss"]) for row in history if "val/loss" in row]
    assert len(losses) == 2
    assert all(0 < loss < 10 for loss in losses)
    assert any("train/loss" in row for row in history)
    images = {key for row in history for key in row if key.startswith("attention/layer")}
    assert {key.split(".")[0] for key in images} == {"attention/layer0", "attention/layer1"}
    assert list(folder.glob("wandb/offline-run-*/files/media/images/attention/*.png"))
    summary = {}
    for record in found:
        if record.WhichOneof("record_type") == "summary":
            summary |= {
                ".".join(item.nested_key) or item.key: item.value_json for item in record.summary.update
            }
    assert float(summary["memory/kv_bytes_per_token_live"]) == 256
    assert float(summary["val/loss"]) == losses[-1]


def test_a_server_that_refuses_costs_one_warning_and_nothing_else(compose, store, monkeypatch):
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    folder = store("abcd0123abcd0124", compose("logger=wandb", "logger.mode=online", "trainer.max_steps=2"))
    with pytest.warns(UserWarning, match="W&B is not reachable"):
        train.run(folder)
    assert list(folder.glob("wandb/offline-run-*/*.wandb"))
    assert (folder / "run.json").exists()


def test_an_unknown_mode_is_refused(compose):
    given = {"folder": None, "id": "x", "group": None, "job_type": "a", "name": "n", "tags": [], "config": {}}
    with pytest.raises(ValueError, match=r"logger.mode must be offline, online or disabled, got onlin"):
        mirror.logger("onlin", "p", None, **given)


def test_no_logger_leaves_no_folder(compose, store):
    folder = store("abcd0123abcd0125", compose("trainer.max_steps=2"))
    train.run(folder)
    assert not (folder / "wandb").exists()
