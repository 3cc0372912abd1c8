"""A trainer that takes no time: it does what `model.act` says. Each attempt leaves a line in `trained`."""

import json
import math
import os
import resource
import signal
import time
from pathlib import Path
from typing import NamedTuple

from attnlab.store import runs
from attnlab.store.files import replacing, write_json
from attnlab.store.guards import digests
from attnlab.store.schema import Metric, RunRecord

DATA = {
    "name": "toy",
    "sha256": "toy",
    "train_tokens": 100,
    "val_tokens": 10,
    "vocab_size": 100,
    "val_windows": 1,
    "unit": "char",
}


def check(config):
    heads, width = config["model"]["attention"].get("n_heads", 1), config["model"]["width"]
    steps = config["trainer"]["max_steps"]
    if width < 1 or steps < 1:
        raise ValueError(f"model.width={width}, trainer.max_steps={steps}: both must be positive")
    return {
        "data": DATA, "measured_by": {"loss": "today's digest"}, "device_kind": config["model"]["device"],
        "parameters": width * 10 + heads * 20,
        "lr": 0.1, "flops_per_token": width, "kv_bytes_per_token": heads * 4, "tokens": 10 * steps,
        "steps": 100 * steps, "figures": config["model"].get("figures"),
        "declared": {"val/loss": {"name": "val/loss", "unit": "nats"}},
    }  # fmt: skip


class Outcome(NamedTuple):
    law: str
    status: str
    detail: str


def verify(config):
    with Path("verified").open("a") as file:
        print(config["model"]["attention"], file=file)
    broken = config["model"]["attention"].get("lawless", False)
    return [Outcome("gravity", "failed" if broken else "passed", "at T=1: it floats")]


def run(folder: Path):
    config = json.loads((folder / "spec.json").read_text())["config"]
    with Path("trained").open("a") as file:
        print(
            config["model"]["act"],
            config["seed"],
            os.getpid(),
            os.environ.get("CUDA_VISIBLE_DEVICES"),
            file=file,
        )
    print(f"the last words of {folder.name}")
    write_json(folder / "progress.json", {"step": 2, "max_steps": 3, "loss": 1.5, "time": time.time()})
    act(config["model"]["act"], folder)
    spec = runs.spec(folder)
    for name in config["model"].get("files", ()):
        (folder / name).write_text(f"{name} of {folder.name}")
    record = RunRecord(
        id=folder.name, status="done", seed=config["seed"], config=config, estimate=spec.estimate,
        metrics={"val/loss": loss(config)}, seconds=0.1,
        declared={"val/loss": Metric("val/loss", unit="nats")},
        files=digests.of_files(folder),
        measured_by=spec.estimate.measured_by, started="2026-01-02T00:00:00+00:00",
    )  # fmt: skip
    runs.write_record(folder, record)


def loss(config):
    heads, rate = check(config)["kv_bytes_per_token"], config["optim"]["lr"]
    off = 0 if rate == 0.1 else abs(rate - 0.05 * heads)  # each arm has its best rate
    noise = 1e-3 * (config["seed"] * (7 + round(heads)) % 5)  # no two pairs alike: ties prove nothing
    late = math.log2(config["trainer"]["max_steps"] / 3) * (
        0.25 + 0.01 * (config["seed"] % 3)
    )  # the more steps the better
    return 2.0 + config["seed"] / 10 + 0.01 * heads + off + noise - late


def measure_again(folder: Path):
    with Path("measured").open("a") as file:
        print(folder.name, file=file)
    record, spec = runs.record(folder), runs.spec(folder)
    again = {"measured_by": spec.estimate.measured_by, "metrics": {"val/loss": loss(record.config)}}
    runs.write_record(folder, record.model_copy(update=again))


def device_kind(config):
    return config["model"]["device"]


def act(what: str, folder: Path):
    match what:
        case "crash" if not Path("mended").exists():
            raise KeyError("the toy broke")
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "unlucky" if not (folder / "killed").exists():
            (folder / "killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        case "lost":  # with the process that started it, as when a machine goes
            os.kill(os.getppid(), signal.SIGKILL)
            time.sleep(60)
        case "resume" if not (folder / "last.ckpt").exists():
            (folder / "last.ckpt").touch()
            time.sleep(60)
        case "memory" if json.loads((folder / "spec.json").read_text())["use"].get("split", 1) < 4:
            raise MemoryError("no room for the toy")
        case "diverge":
            raise FloatingPointError("the toy's loss is nan at step 2")
        case "full" if not Path("mended").exists():
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # nothing more can be written, a record neither
            raise OSError("no space for the toy")
        case "fill" if not Path("mended").exists():
            with replacing(folder / "last.ckpt") as temporary:
                temporary.write_bytes(b"x" * 10**8)
        case "hoard":
            resource.setrlimit(resource.RLIMIT_AS, (2**31, 2**31))
            bytearray(2**33)
        case "gate":  # until the test opens it
            while not Path("open").exists():
                time.sleep(0.01)
        case "slow":
            time.sleep(1)
        case "sleep" if not Path("mended").exists():
            time.sleep(60)
