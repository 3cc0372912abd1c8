"""A training step: nanoGPT's architecture in a bare loop, ours in the same loop, ours through Lightning. Then
a small step, two threads, what a run spends beside its steps, and how soon it makes the first one.

nanoGPT fuses AdamW on a GPU only, and so does its arm; a second arm gives it the fused AdamW that we use on a
CPU too, which leaves the architectures alone to differ.
"""

import contextlib
import importlib.util
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import count, islice, repeat
from pathlib import Path
from statistics import median
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.profilers import SimpleProfiler

from attnlab.cli.bench import Bench, Row
from attnlab.cli.bench.nanogpt import NanoGpt
from attnlab.cli.bench.rows import rows
from attnlab.cli.bench.setup import composed, conditions, here, is_debug
from attnlab.cli.bench.trials import survey
from attnlab.measure.roofline import Roofline, roofline
from attnlab.measure.size import flops_per_token
from attnlab.measure.timing import in_bf16, wait
from attnlab.model.build import build_model, device_of, make
from attnlab.store import runs
from attnlab.store.schema import RunSpec
from attnlab.sweep.execute import slots
from attnlab.sweep.execute.pool import WORKER
from attnlab.sweep.plan.fork_server import warm
from attnlab.training import callbacks, checkpoints, run, settings
from attnlab.training.loggers import notes
from attnlab.training.module import LanguageModel

OVERRIDES = [
    "model.n_layers=4", "model.dim=128", "model.n_heads=4", "data.length=64", "data.batch_size=12",
    "position=learned", "logger=none", "optim.lr=1e-3",
]  # fmt: skip
SMALL = {"n_layers": 2, "dim": 64, "n_heads": 4, "length": 32, "batch_size": 8}
STEPS = 20
WARM_UP = 4
ROUNDS = 9
STARTS = 7
DEBUG_STEPS = 2
DEBUG_STARTS = 2
WAITING = "of which: waiting for a batch"
prepare = partial(here, OVERRIDES)


def measure(config: Mapping[str, Any], bench: Bench, say: Callable[[str], None], rounds: int) -> None:
    """Milliseconds a step; through Lightning a sample is the mean of STEPS steps after WARM_UP more, and what
    it waits for its batches is what its own profiler says.
    """
    device = device_of(config)
    say("measuring copy bandwidth and matrix products")
    limits = roofline(device, torch.bfloat16 if in_bf16(config) else torch.float32)
    bench.conditions |= conditions(config) | {
        "copy_bytes_per_s": limits.bytes_per_s,
        "matmul_flops_per_s": limits.flops_per_s,
    }
    model = config["model"]
    group = f"a step of {model['n_layers']} layers, d = {model['dim']}"
    bench.rows += _steps(group, config, limits, say, rounds)
    if not is_debug(config):
        small = composed(
            [*OVERRIDES, *(f"model.{key}={SMALL[key]}" for key in ("n_layers", "dim", "n_heads")),
             *(f"data.{key}={SMALL[key]}" for key in ("length", "batch_size"))]
        )  # fmt: skip
        bench.rows += _steps("a small step: 2 layers, d = 64", small, limits, say, rounds)
    if device == "cpu" and torch.get_num_threads() == 1 and (os.cpu_count() or 1) > 1:
        torch.set_num_threads(2)
        bench.rows += _steps("the first step on two threads", config, roofline(device), say, rounds)
        torch.set_num_threads(1)
    size = "debug" if is_debug(config) else "S"
    bench.rows += _run(size, say)
    if device == "cpu":
        bench.rows.append(_start(size, say))
        bench.rows += _logging(size, say)


def _steps(
    group: str, config: Mapping[str, Any], limits: Roofline, say: Callable[[str], None], rounds: int
) -> list[Row]:
    """Bare loops step by step in turn, so that a busy moment of the machine hits them all (on a GPU many
    steps at a time, since it must not wait after each); then whole fits of Lightning beside our bare loop.
    """
    data = make(config["data"])
    device = device_of(config)
    model = config["model"]
    vocab_size = data.task.vocab_size
    compiled = torch.compile if config["optim"]["compile"] else lambda network: network
    steps = DEBUG_STEPS if is_debug(config) else STEPS
    burst = 1 if device == "cpu" else steps

    def nanogpt(fused: bool) -> Iterator[float]:
        shape = (data.task.length, model["dim"], model["n_heads"], model["n_layers"])
        network: Any = NanoGpt(vocab_size, *shape).to(device)
        call = compiled(network)

        def loss_of(batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
            return call(batch["tokens"], batch["targets"])

        yield from _loop(config, data, network, loss_of, fused, repeat(burst))

    def ours(bursts: Iterable[int]) -> Iterator[float]:
        network: Any = build_model(config, vocab_size).to(device)
        call = compiled(network)

        def loss_of(batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
            logits = call(batch["tokens"]).flatten(0, 1).float()
            return torch.nn.functional.cross_entropy(logits, batch["targets"].flatten())

        yield from _loop(config, data, network, loss_of, True, bursts)

    def bare() -> float:
        _, figure = ours([WARM_UP, steps])
        return figure

    def fit(**more: Any) -> None:
        chosen = dict(config["trainer"]) | settings.QUIET | {"max_steps": steps + WARM_UP}
        with settings.quiet():
            trainer = make(chosen, logger=False, max_epochs=1, limit_val_batches=0, **more)
            trainer.fit(make(config["optim"], model=build_model(config, vocab_size)), data)

    def lightning() -> float:
        clock = _Clock(device)
        fit(callbacks=[clock])
        return (clock.ended - clock.began) * 1e3 / steps

    def waiting() -> float:
        profiler = SimpleProfiler()
        fit(profiler=profiler)
        [name] = [name for name in profiler.recorded_durations if name.endswith("train_dataloader_next")]
        return sum(profiler.recorded_durations[name][WARM_UP:]) * 1e3 / steps

    loops = {"nanoGPT's": nanogpt(fused=device != "cpu"), "ours": ours(repeat(burst))}
    if device == "cpu":
        loops["nanoGPT's, with a fused AdamW"] = nanogpt(fused=True)
    with torch.device("meta"):
        flops = flops_per_token(build_model(config, vocab_size), data.task.length)
    tokens = data.batch_size * data.task.length
    floor = limits.milliseconds(0, flops * tokens)
    table = []
    turns = max(1, rounds * steps // (2 * burst))
    fits = {"our bare loop": bare, "through Lightning": lightning, WAITING: waiting}
    for title, works, taken in (
        (f"{group}, bare loops", {name: loop.__next__ for name, loop in loops.items()}, turns),
        (f"{group}, Lightning", fits, rounds),
    ):
        say(title)
        samples, notes = survey(works, taken, say)
        facts = {
            name: {"tokens_per_s": round(1e3 * tokens / median(values)), "flops": flops * tokens}
            for name, values in samples.items()
            if name != WAITING
        }
        table += rows(title, samples, "ms", dict.fromkeys(facts, floor), facts, notes)
    return table


def _loop(
    config: Mapping[str, Any],
    data: Any,
    network: Any,
    loss_of: Callable[[Mapping[str, torch.Tensor]], torch.Tensor],
    fused: bool,
    bursts: Iterable[int],
) -> Iterator[float]:
    """A plain training loop that yields the milliseconds of a step, after each burst of so many."""
    device = device_of(config)
    clip = config["trainer"]["gradient_clip_val"]
    optimizer, schedule = make(config["optim"], model=network).optimizer(10**6)
    for group in optimizer.param_groups:
        group["fused"] = fused
    steps = count()
    for burst in bursts:
        wait(device)
        began = time.perf_counter()
        for step in islice(steps, burst):
            batch = {k: v.to(device) for k, v in data.task.train_batch(0, step, data.batch_size).items()}
            with torch.autocast(device, torch.bfloat16, enabled=in_bf16(config)):
                loss = loss_of(batch)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(network.parameters(), clip)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            schedule.step()
        wait(device)
        yield (time.perf_counter() - began) * 1e3 / burst


class _Clock(pl.Callback):
    def __init__(self, device: str) -> None:
        self.device = device

    def on_train_batch_start(self, trainer: pl.Trainer, module: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == WARM_UP:
            wait(self.device)
            self.began = time.perf_counter()

    def on_train_end(self, trainer: pl.Trainer, module: Any) -> None:
        wait(self.device)
        self.ended = time.perf_counter()


WATCHED: dict[str, list[tuple[Any, str]]] = {
    "curves and the logger's rows": [(callbacks.Curves, "add")],
    "checkpoints and heartbeat": [
        (checkpoints.Checkpoints, "on_train_batch_end"),
        (callbacks.Heartbeat, "on_train_batch_end"),
    ],
    "attention maps": [(callbacks.ProbeMaps, "take")],
    "waiting for W&B": [(run, "open_loggers"), (run, "end_loggers")],
    "evaluation": [(LanguageModel, "validation_step")],
    "measurements at the end": [(run, "measure")],
}


def _run(size: str, say: Callable[[str], None]) -> list[Row]:
    """One run of that size as a sweep would make it, in this process, with a checkpoint every hundred steps,
    after a short one that pays for the imports. Without W&B where that is not installed.
    """
    logger = "logger.mode=offline" if importlib.util.find_spec("wandb") else "logger=none"
    say(f"a whole run of size {size}")
    seconds: dict[str, float] = {}
    for more in (["trainer.max_steps=2"], []):
        seconds = dict.fromkeys(WATCHED, 0.0)
        with tempfile.TemporaryDirectory() as folder:
            line = [f"size={size}", *more, logger, "sweep.checkpoint_every=100"]
            place = _spec(Path(folder), composed([*line, f"paths.cache={folder}"]))
            began = time.perf_counter()
            with contextlib.ExitStack() as stack, contextlib.redirect_stdout(None):
                for name, functions in WATCHED.items():
                    for owner, function in functions:
                        stack.enter_context(_watch(owner, function, seconds, name))
                run.run(place)
            whole = time.perf_counter() - began
    group = f"shares of a run of size {size}"
    return [Row(group, "the run", "s", [whole], whole, ratio=1.0)] + [
        Row(group, name, "s", [value], value, ratio=value / whole) for name, value in seconds.items()
    ]


def _start(size: str, say: Callable[[str], None]) -> Row:
    """From starting a process in a warm slot to the end of a run's first step; the first start, which also
    warms the slot, does not count.
    """
    context = warm(run.__name__)
    samples = []
    starts = DEBUG_STARTS if size == "debug" else STARTS
    for n in range(starts):
        say(f"starting a run, {n + 1} of {starts}")
        with tempfile.TemporaryDirectory() as folder:
            config = composed([f"size={size}", "logger=none", "trainer.max_steps=1", f"paths.cache={folder}"])
            place = _spec(Path(folder), config)
            began = time.perf_counter()
            child = slots.start(slots.Slot(0, None, 1), context, WORKER, [str(place)], place / "log.txt")
            try:
                while child.code() is None and not (place / "progress.json").exists():
                    time.sleep(0.005)
                samples.append(time.perf_counter() - began)
                while child.code() is None:
                    time.sleep(0.01)
            except BaseException:  # a signal
                slots.end([child])
                raise
            if child.code():
                raise RuntimeError(
                    f"the run ended with {child.code()}: {(place / 'log.txt').read_text()[-500:]}"
                )
    return rows("start of a run", {"process to first step, warm slot": samples[1:]}, "s")[0]


def _logging(size: str, say: Callable[[str], None]) -> list[Row]:
    """Whole short runs, each in a process of its own, in turn without a logger and with W&B's offline files.
    The first of each, which warms the slot, does not count.
    """
    context = warm(run.__name__, 1, [*notes.WANDB_IMPORTS, "pandas"])
    samples: dict[str, list[float]] = {"logger=none": [], "logger.mode=offline": []}
    for n in range(DEBUG_STARTS if size == "debug" else STARTS):
        for logger, taken in samples.items():
            say(f"logging a run, {n + 1}: {logger}")
            with tempfile.TemporaryDirectory() as folder:
                config = composed([f"size={size}", logger, f"paths.cache={folder}"])
                place = _spec(Path(folder), config)
                began = time.perf_counter()
                _finish(slots.start(slots.Slot(0, None, 1), context, WORKER, [str(place)], place / "log.txt"))
                taken.append(time.perf_counter() - began)
    return rows(
        "a run, from its process to its end", {name: taken[1:] for name, taken in samples.items()}, "s"
    )


def _finish(child: slots.Child) -> None:
    """Waits for a worker; a signal ends it."""
    try:
        while child.code() is None:
            time.sleep(0.01)
    except BaseException:
        slots.end([child])
        raise
    if child.code():
        raise RuntimeError(f"the run ended with {child.code()}")


def _spec(folder: Path, config: Mapping[str, Any]) -> Path:
    """A run's folder, ready to be trained."""
    spec = RunSpec(id="0" * 16, config=dict(config))
    runs.write_spec(folder, spec)
    return folder / spec.id


@contextlib.contextmanager
def _watch(owner: Any, function: str, seconds: dict[str, float], name: str) -> Iterator[None]:
    """Adds the time that a function takes to `seconds[name]`."""
    plain = getattr(owner, function)

    def timed(*given: Any, **options: Any) -> Any:
        began = time.perf_counter()
        try:
            return plain(*given, **options)
        finally:
            seconds[name] += time.perf_counter() - began

    setattr(owner, function, timed)
    try:
        yield
    finally:
        setattr(owner, function, plain)
