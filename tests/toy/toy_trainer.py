"""Instant trainer that ends as `model.act` prescribes; each attempt appends a line to the file `trained`."""

import json
import math
import os
import resource
import signal
import time
from pathlib import Path
from typing import NamedTuple

from attnlab.store import run_directories
from attnlab.store.atomic_files import replace_atomically, write_json
from attnlab.store.guards import digests
from attnlab.store.run_schema import Metric, RunResult

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
    if width == 13 and heads > 1:  # an incompatible pair of options that are each valid
        raise ValueError(f"model.width={width} is no multiple of n_heads={heads}")
    return {
        "data": DATA, "measured_by": {"loss": "today's digest"}, "device_kind": config["model"]["device"],
        "parameters": width * 10 + heads * 20,
        "lr": 0.1, "flops_per_token": width, "kv_bytes_per_token": heads * 4, "tokens": 10 * steps,
        "steps": 100 * steps, "metric_names": config["model"].get("metric_names"),
        "metric_definitions": {"val/loss": {"name": "val/loss", "unit": "nats"}},
    }  # fmt: skip


class Outcome(NamedTuple):
    invariant: str
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
    if config["model"]["act"] == "stillborn":
        raise KeyError("the toy never began")
    write_json(folder / "progress.json", {"step": 2, "max_steps": 3, "loss": 1.5, "time": time.time()})
    act(config["model"]["act"], folder)
    run_config = run_directories.load_run_config(folder)
    for name in config["model"].get("files", ()):
        (folder / name).write_text(f"{name} of {folder.name}")
    result = RunResult(
        id=folder.name, status="done", seed=config["seed"], config=config, estimate=run_config.estimate,
        metrics={"val/loss": loss(config)}, seconds=0.1,
        metric_definitions={"val/loss": Metric("val/loss", unit="nats")},
        files=digests.hash_run_files(folder),
        measured_by=run_config.estimate.measured_by, started="2026-01-02T00:00:00+00:00",
    )  # fmt: skip
    run_directories.write_run_result(folder, result)


def loss(config):
    heads, rate = check(config)["kv_bytes_per_token"], config["optim"]["lr"]
    off = 0 if rate == 0.1 else abs(rate - 0.05 * heads)  # each arm has its own best learning rate
    noise = 1e-3 * (config["seed"] * (7 + round(heads)) % 5)  # no two pairs are equal: ties prove nothing
    # more steps lower the loss: nats per doubling of training, from seed to seed
    gain = math.log2(config["trainer"]["max_steps"] / 3) * (0.25 + 0.01 * (config["seed"] % 3))
    return 2.0 + config["seed"] / 10 + 0.01 * heads + off + noise - gain


def measure_again(folder: Path):
    with Path("measured").open("a") as file:
        print(folder.name, file=file)
    result = run_directories.load_run_result(folder)
    run_config = run_directories.load_run_config(folder)
    changes = {"measured_by": run_config.estimate.measured_by, "metrics": {"val/loss": loss(result.config)}}
    run_directories.write_run_result(folder, result.model_copy(update=changes))


def device_kind(config):
    return os.environ.get("TOY_DEVICE", config["model"]["device"])  # a host may have lost its device


def act(name: str, folder: Path):
    match name:
        case "crash" if not Path("mended").exists():
            raise KeyError("the toy broke")
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "unlucky" if not (folder / "killed").exists():
            (folder / "killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        case "lost":  # together with the process that started it, as when a machine fails
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
            resource.setrlimit(
                resource.RLIMIT_FSIZE, (0, 0)
            )  # nothing more can be written, a run result neither
            raise OSError("no space for the toy")
        case "fill" if not Path("mended").exists():
            with replace_atomically(folder / "last.ckpt") as temporary:
                temporary.write_bytes(b"x" * 10**8)
        case "hoard":
            resource.setrlimit(resource.RLIMIT_AS, (2**31, 2**31))
            bytearray(2**33)
        case "gate":  # wait until the test opens it
            while not Path("open").exists():
                time.sleep(0.01)
        case "slow":
            time.sleep(1)
        case "sleep" if not Path("mended").exists():
            time.sleep(60)
