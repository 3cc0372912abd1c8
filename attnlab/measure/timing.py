"""Time of a training step and of a decoded token, arms interleaved A B ... B A, in one process that has the
device to itself.

Slow drifts (heat, a neighbour) hit all arms alike that way; a loop over arms would give them to the last
one. Raw samples are kept.
"""

import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors.torch import load_model
from torch import Tensor

from attnlab.attention.contracts import Unsupported
from attnlab.measure.size import THROUGHPUT
from attnlab.model.build import build_model, device_of, make
from attnlab.model.generation import Decoder
from attnlab.stats import median_interval
from attnlab.store import runs
from attnlab.store.schema import Metric, named

ROUNDS = 12  # each is a block A B B A: two samples per arm
PROMPT = 16
Name = TypeVar("Name", bound=Hashable)
STEP = Metric("train_step_ms", "time of a training step", "ms", kind="time")
TIMES = named(
    STEP,
    Metric("decode_ms_per_token", "decoding time per token", "ms", kind="time"),
    Metric("decode_uncached_ms_per_token", "decoding time per token without a cache", "ms", kind="time"),
)


def measure(folders: Mapping[str, Path]) -> dict[str, Any]:
    """Timings of finished runs, one per arm: training step, decoding with the run's cache and without any, in
    milliseconds; and the tokens per second that the step comes to.

    Training steps are timed on throw-away optimiser state over the final weights, so nothing on disk changes.
    """
    torch.manual_seed(0)
    arms = {arm: _load(folder) for arm, folder in folders.items()}
    first = next(iter(arms.values()))
    works = {arm: _works(*loaded) for arm, loaded in arms.items()}
    notes = {arm: _drop_unsupported(work) for arm, work in works.items()}
    samples = {
        kind: interleave({arm: call for arm, work in works.items() if (call := work[kind]) is not None})
        for kind in TIMES
    }
    return {
        "order": "ABBA",
        "declared": {name: asdict(metric) for name, metric in (TIMES | named(THROUGHPUT)).items()},
        "device": first[2],
        "threads": torch.get_num_threads(),
        "context": first[3].task.length,
        "batch": first[3].batch_size,
        "arms": {
            arm: {kind: _summary(samples[kind][arm]) if arm in samples[kind] else None for kind in samples}
            | {THROUGHPUT.name: _per_second(samples[STEP.name].get(arm), data.batch_size * data.task.length)}
            | {"note": notes[arm]}
            for arm, (_, _, _, data, _) in arms.items()
        },
    }


def _drop_unsupported(works: dict[str, Callable[[], float] | None]) -> str | None:
    """Takes out what this arm cannot do, and says why."""
    reasons = []
    for kind, work in works.items():
        try:
            if work is not None:
                work()
        except Unsupported as error:
            works[kind] = None
            reasons.append(f"{kind}: {error}")
    return "; ".join(reasons) or None


def interleave(
    works: Mapping[Name, Callable[[], float]],
    rounds: int = ROUNDS,
    say: Callable[[str], None] = lambda line: None,
    warm_up: bool = True,
) -> dict[Name, list[float]]:
    """Calls every work twice per round, forwards then backwards; before that once to warm up.

    A work returns its own figure; figures 2r and 2r + 1 of all works belong to the same moment.
    """
    samples: dict[Name, list[float]] = {name: [] for name in works}
    for work in works.values() if warm_up else ():
        work()
    for n in range(rounds):
        say(f"round {n + 1} of {rounds}")
        for name in [*works, *reversed(list(works))]:
            samples[name].append(works[name]())
    return samples


def timed(work: Callable[[], object], units: int, device: str) -> Callable[[], float]:
    """`work` as a function that returns its milliseconds per unit, the device's queue included."""

    def figure() -> float:
        wait(device)
        began = time.perf_counter()
        work()
        wait(device)
        return (time.perf_counter() - began) * 1e3 / units

    return figure


def in_bf16(config: Mapping[str, Any]) -> bool:
    """Whether its arithmetic is in bfloat16, whatever its weights are kept in."""
    return str(config["trainer"]["precision"]).startswith("bf16")


def wait(device: str) -> None:
    """Until the device has done what it was given."""
    if device == "cuda":
        torch.cuda.synchronize()


def _summary(samples: list[float]) -> dict[str, Any]:
    interval = median_interval(samples)
    return {"median": interval.estimate, "low": interval.low, "high": interval.high, "samples": samples}


def _per_second(samples: list[float] | None, tokens: int) -> dict[str, Any] | None:
    """The throughput of training steps of so many tokens, from their milliseconds."""
    if samples is None:
        return None
    took = _summary(samples)
    tokens_ms = 1e3 * tokens
    return {
        "median": tokens_ms / took["median"],
        "low": tokens_ms / took["high"] if took["high"] else None,
        "high": tokens_ms / took["low"] if took["low"] else None,
        "samples": [tokens_ms / sample for sample in samples],
    }


def _load(folder: Path) -> tuple[Any, Any, str, Any, Mapping[str, Any]]:
    record = runs.record(folder)
    assert record is not None, folder
    config = record.config
    data = make(config["data"])
    device = device_of(config)
    model = build_model(config, data.task.vocab_size)
    load_model(model, str(folder / "model.safetensors"))
    module = make(config["optim"], model=model).to(device)
    return module, model, device, data, config


def _works(
    module: Any, model: Any, device: str, data: Any, config: Mapping[str, Any]
) -> dict[str, Callable | None]:
    batch = {key: value.to(device) for key, value in data.task.train_batch(0, 0, data.batch_size).items()}
    own = getattr(module, "optimizer", None)  # which a training step of a user's need not have
    optimizer = own(1)[0] if own else torch.optim.AdamW(model.parameters(), fused=True)
    for group in optimizer.param_groups:
        group["lr"] = 0.0  # a step of length zero costs what any step costs

    def precision() -> torch.autocast:
        return torch.autocast(device, torch.bfloat16, enabled=in_bf16(config))

    def train() -> None:
        model.train()
        with precision():
            loss = module.losses(batch).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    length = data.task.length
    prompt: Tensor = batch["tokens"][:1, : min(PROMPT, length // 2)]
    new = length - prompt.shape[1]
    cache = make(config["decode"]["cache"]) if config["decode"]["cache"] is not None else None
    compiled = bool(config["decode"].get("compile"))

    def decode(make_cache: Callable[..., Any] | None, compiled: bool = False) -> Callable[[], float]:
        decoder = Decoder(model, make_cache, compiled)

        def work() -> None:
            with precision():
                decoder.generate(prompt, new)

        return timed(work, new, device)

    return {
        "train_step_ms": timed(train, 1, device),
        "decode_ms_per_token": decode(cache, compiled) if cache is not None else None,
        "decode_uncached_ms_per_token": decode(None),
    }
