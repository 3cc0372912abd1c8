"""Time of a training step: nanoGPT in a bare loop, attnlab in the same loop, and attnlab with Lightning.

Further rows: a small step, two threads, time of a run outside its steps, and time to the first step.
nanoGPT fuses AdamW on a GPU only, and so does its row. A second row uses the fused AdamW of attnlab on a CPU
too, so that only the architectures differ.
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

from attnlab.measure.resources import count_flops_per_token
from attnlab.measure.roofline import Roofline, measure_roofline
from attnlab.measure.step_timing import is_bf16, synchronize_device
from attnlab.model.build import build_model, instantiate_config, select_device
from attnlab.store import run_directories
from attnlab.store.run_schema import RunConfig
from attnlab.sweep.execute import worker_slots
from attnlab.sweep.execute.pool import WORKER
from attnlab.sweep.plan.fork_server import Context, make_warm_context
from attnlab.training import callbacks, checkpoints, run, trainer_settings
from attnlab.training.language_model import LanguageModel
from attnlab.training.loggers import logger_notes
from benchmarks import BenchResult, BenchRow
from benchmarks.bench_config import (
    compose_local_config,
    compose_run_config,
    is_debug,
    measure_limits,
)
from benchmarks.bench_rows import build_rows
from benchmarks.nanogpt import NanoGpt
from benchmarks.workloads import sample_supported

OVERRIDES = [
    "model.n_layers=4", "model.dim=128", "model.n_heads=4", "data.length=64", "data.batch_size=12",
    "position=learned", "logger=none", "optim.lr=1e-3",
]  # fmt: skip
SMALL_SHAPE = {"n_layers": 2, "dim": 64, "n_heads": 4, "length": 32, "batch_size": 8}
TIMED_STEPS = 20
WARM_UP_STEPS = 4
ROUNDS = 9
STARTS = 7
DEBUG_STEPS = 2
DEBUG_STARTS = 2
BATCH_WAIT = "of which: waiting for a batch"
prepare = partial(compose_local_config, OVERRIDES)


def measure(config: Mapping[str, Any], bench: BenchResult, log: Callable[[str], None], rounds: int) -> None:
    """Measure milliseconds per step, then whole runs.

    With Lightning a sample is the mean of TIMED_STEPS steps after WARM_UP_STEPS. The wait for batches is
    taken from Lightning's profiler.
    """
    device = select_device(config)
    dtype = torch.bfloat16 if is_bf16(config) else torch.float32
    limits = measure_limits(config, dtype, bench, log)
    model = config["model"]
    group = f"a step of {model['n_layers']} layers, d = {model['dim']}"
    bench.rows += _measure_steps(group, config, limits, log, rounds)
    if not is_debug(config):
        small = compose_run_config(
            [*OVERRIDES, *(f"model.{key}={SMALL_SHAPE[key]}" for key in ("n_layers", "dim", "n_heads")),
             *(f"data.{key}={SMALL_SHAPE[key]}" for key in ("length", "batch_size"))]
        )  # fmt: skip
        bench.rows += _measure_steps("a small step: 2 layers, d = 64", small, limits, log, rounds)
    if device == "cpu" and torch.get_num_threads() == 1 and (os.cpu_count() or 1) > 1:
        torch.set_num_threads(2)
        bench.rows += _measure_steps(
            "the first step on two threads", config, measure_roofline(device), log, rounds
        )
        torch.set_num_threads(1)
    size = "debug" if is_debug(config) else "S"
    bench.rows += _measure_run(size, log)
    if device == "cpu":
        bench.rows.append(_measure_start(size, log))
        bench.rows += _measure_logging(size, log)


def _measure_steps(
    group: str, config: Mapping[str, Any], limits: Roofline, log: Callable[[str], None], rounds: int
) -> Iterator[BenchRow]:
    """Measure bare loops, then whole Lightning fits against the bare loop; yield the rows of each.

    Bare loops alternate step by step, so that load on the machine affects all of them. On a GPU they
    alternate after several steps, to avoid a synchronization per step.
    """
    data = instantiate_config(config["data"])
    device = select_device(config)
    model = config["model"]
    vocab_size = data.task.vocab_size
    compiled = torch.compile if config["optim"]["compile"] else lambda function: function
    steps = DEBUG_STEPS if is_debug(config) else TIMED_STEPS
    burst = 1 if device == "cpu" else steps

    def time_nanogpt(fused: bool) -> Iterator[float]:
        shape = (data.task.length, model["dim"], model["n_heads"], model["n_layers"])
        network: Any = NanoGpt(vocab_size, *shape).to(device)
        compute_loss = compiled(network)
        yield from _time_training_loop(config, data, network, compute_loss, fused, repeat(burst))

    def time_attnlab(bursts: Iterable[int]) -> Iterator[float]:
        network: Any = build_model(config, vocab_size).to(device)
        compute_loss = partial(compiled(_compute_loss), network)
        yield from _time_training_loop(config, data, network, compute_loss, True, bursts)

    def time_bare_loop() -> float:
        _, step_ms = time_attnlab([WARM_UP_STEPS, steps])
        return step_ms

    def fit_with_lightning(**overrides: Any) -> None:
        trainer_config = (
            dict(config["trainer"]) | trainer_settings.QUIET_SETTINGS | {"max_steps": steps + WARM_UP_STEPS}
        )
        with trainer_settings.silence_lightning():
            trainer = instantiate_config(
                trainer_config, logger=False, max_epochs=1, limit_val_batches=0, **overrides
            )
            trainer.fit(instantiate_config(config["optim"], model=build_model(config, vocab_size)), data)

    def time_lightning() -> float:
        clock = _StepClock(device)
        fit_with_lightning(callbacks=[clock])
        return (clock.end_time - clock.start_time) * 1e3 / steps

    def time_batch_wait() -> float:
        profiler = SimpleProfiler()
        fit_with_lightning(profiler=profiler)
        [name] = [name for name in profiler.recorded_durations if name.endswith("train_dataloader_next")]
        return sum(profiler.recorded_durations[name][WARM_UP_STEPS:]) * 1e3 / steps

    loops = {"nanoGPT's": time_nanogpt(fused=device != "cpu"), "ours": time_attnlab(repeat(burst))}
    if device == "cpu":
        loops["nanoGPT's, with a fused AdamW"] = time_nanogpt(fused=True)
    with torch.device("meta"):
        flops = count_flops_per_token(build_model(config, vocab_size), data.task.length)
    tokens = data.batch_size * data.task.length
    roofline_ms = limits.minimum_ms(0, flops * tokens)
    n_turns = max(rounds, rounds * steps // (2 * burst))
    fits = {"our bare loop": time_bare_loop, "through Lightning": time_lightning, BATCH_WAIT: time_batch_wait}
    for title, workloads, n_rounds in (
        (f"{group}, bare loops", {name: loop.__next__ for name, loop in loops.items()}, n_turns),
        (f"{group}, Lightning", fits, rounds),
    ):
        log(title)
        samples, notes = sample_supported(workloads, n_rounds, log)
        facts = {
            name: {"tokens_per_s": round(1e3 * tokens / median(values)), "flops": flops * tokens}
            for name, values in samples.items()
            if name != BATCH_WAIT
        }
        yield from build_rows(title, samples, "ms", dict.fromkeys(facts, roofline_ms), facts, notes)


def _compute_loss(network: Any, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    logits = network(tokens).flatten(0, 1).float()
    return torch.nn.functional.cross_entropy(logits, targets.flatten())


def _time_training_loop(
    config: Mapping[str, Any],
    data: Any,
    network: Any,
    compute_loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    fused: bool,
    bursts: Iterable[int],
) -> Iterator[float]:
    """Train in a plain loop and yield the mean milliseconds per step of each burst."""
    device = select_device(config)
    clip = config["trainer"]["gradient_clip_val"]
    optimizer, schedule = instantiate_config(config["optim"], model=network).optimizer(10**6)
    for group in optimizer.param_groups:
        group["fused"] = fused
    steps = count()
    for burst in bursts:
        synchronize_device(device)
        start_time = time.perf_counter()
        for step in islice(steps, burst):
            batch = {k: v.to(device) for k, v in data.task.train_batch(0, step, data.batch_size).items()}
            with torch.autocast(device, torch.bfloat16, enabled=is_bf16(config)):
                loss = compute_loss(batch["tokens"], batch["targets"])
            loss.backward()
            torch.nn.utils.clip_grad_norm_(network.parameters(), clip)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            schedule.step()
        synchronize_device(device)
        yield (time.perf_counter() - start_time) * 1e3 / burst


class _StepClock(pl.Callback):
    def __init__(self, device: str) -> None:
        self.device = device

    def on_train_batch_start(self, trainer: pl.Trainer, module: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == WARM_UP_STEPS:
            synchronize_device(self.device)
            self.start_time = time.perf_counter()

    def on_train_end(self, trainer: pl.Trainer, module: Any) -> None:
        synchronize_device(self.device)
        self.end_time = time.perf_counter()


PROFILED_FUNCTIONS: dict[str, list[tuple[Any, str]]] = {
    "curves and the logger's rows": [(callbacks.CurveRecorder, "log_values")],
    "checkpoints and heartbeat": [
        (checkpoints.CheckpointSaver, "on_train_batch_end"),
        (callbacks.ProgressWriter, "on_train_batch_end"),
    ],
    "attention maps": [(callbacks.MapRecorder, "record_maps")],
    "waiting for W&B": [(run, "open_loggers"), (run, "close_loggers")],
    "evaluation": [(LanguageModel, "validation_step")],
    "measurements at the end": [(run, "measure_final_metrics")],
}


def _measure_run(size: str, log: Callable[[str], None]) -> list[BenchRow]:
    """Profile one run in this process, configured as in a sweep, with a checkpoint every 100 steps.

    A short run before it pays for the imports. W&B logs offline if it is installed.
    """
    logger = "logger.mode=offline" if importlib.util.find_spec("wandb") else "logger=none"
    log(f"a whole run of size {size}")
    seconds: dict[str, float] = {}
    for extra_overrides in (["trainer.max_steps=2"], []):
        seconds = dict.fromkeys(PROFILED_FUNCTIONS, 0.0)
        with tempfile.TemporaryDirectory() as folder:
            overrides = [f"size={size}", *extra_overrides, logger, "sweep.checkpoint_every=100"]
            run_folder = _write_run_config(
                Path(folder), compose_run_config([*overrides, f"paths.cache={folder}"])
            )
            start_time = time.perf_counter()
            with contextlib.ExitStack() as stack, contextlib.redirect_stdout(None):
                for name, functions in PROFILED_FUNCTIONS.items():
                    for owner, function_name in functions:
                        stack.enter_context(_profile_function(owner, function_name, seconds, name))
                run.run(run_folder)
            run_seconds = time.perf_counter() - start_time
    group = f"time proportions in a run of size {size}"
    return [BenchRow(group, "the run", "s", [run_seconds], run_seconds, ratio=1.0)] + [
        BenchRow(group, name, "s", [value], value, ratio=value / run_seconds)
        for name, value in seconds.items()
    ]


def _measure_start(size: str, log: Callable[[str], None]) -> BenchRow:
    """Measure the time from starting a process in a warm slot to the end of a run's first step.

    The first start, which also warms the slot, does not count.
    """
    context = make_warm_context(run.__name__)
    samples = []
    n_starts = DEBUG_STARTS if size == "debug" else STARTS
    for index in range(n_starts):
        log(f"starting a run, {index + 1} of {n_starts}")
        with tempfile.TemporaryDirectory() as folder:
            config = compose_run_config(
                [f"size={size}", "logger=none", "trainer.max_steps=1", f"paths.cache={folder}"]
            )
            run_folder = _write_run_config(Path(folder), config)
            start_time = time.perf_counter()
            with _start_worker(run_folder, context) as child:
                while child.poll_exit_code() is None and not (run_folder / "progress.json").exists():
                    time.sleep(0.005)
                samples.append(time.perf_counter() - start_time)
    return build_rows("start of a run", {"process to first step, warm slot": samples[1:]}, "s")[0]


def _measure_logging(size: str, log: Callable[[str], None]) -> list[BenchRow]:
    """Measure short runs in separate processes, alternating between no logger and W&B in offline mode.

    The first of each, which warms the slot, does not count.
    """
    context = make_warm_context(run.__name__, 1, [*logger_notes.WANDB_IMPORTS, "pandas"])
    samples: dict[str, list[float]] = {"logger=none": [], "logger.mode=offline": []}
    for index in range(DEBUG_STARTS if size == "debug" else STARTS):
        for logger, logger_samples in samples.items():
            log(f"logging a run, {index + 1}: {logger}")
            with tempfile.TemporaryDirectory() as folder:
                config = compose_run_config([f"size={size}", logger, f"paths.cache={folder}"])
                run_folder = _write_run_config(Path(folder), config)
                start_time = time.perf_counter()
                with _start_worker(run_folder, context):
                    pass  # it trains until the end of the block
                logger_samples.append(time.perf_counter() - start_time)
    return build_rows(
        "a run, from its process to its end",
        {name: logger_samples[1:] for name, logger_samples in samples.items()},
        "s",
    )


@contextlib.contextmanager
def _start_worker(run_folder: Path, context: Context) -> Iterator[worker_slots.ChildProcess]:
    """Start a run in a slot of one thread, and wait for it after the block; a signal stops it.

    Raises:
        RuntimeError: The run failed; the message ends with its log.
    """
    log = run_folder / "log.txt"
    slot = worker_slots.WorkerSlot(0, None, 1)
    child = worker_slots.start_child(slot, context, WORKER, [str(run_folder)], log)
    try:
        yield child
        while child.poll_exit_code() is None:
            time.sleep(0.01)
    except BaseException:
        worker_slots.stop_children([child])
        raise
    if code := child.poll_exit_code():
        raise RuntimeError(f"the run exited with status {code}: {log.read_text()[-500:]}")


def _write_run_config(folder: Path, config: Mapping[str, Any]) -> Path:
    """Write a run's config, and return its folder."""
    spec = RunConfig(id="0" * 16, config=dict(config))
    run_directories.write_run_config(folder, spec)
    return folder / spec.id


@contextlib.contextmanager
def _profile_function(owner: Any, function_name: str, seconds: dict[str, float], name: str) -> Iterator[None]:
    """Add the time spent in `owner.function_name` to `seconds[name]` inside the block."""
    original = getattr(owner, function_name)

    def call_timed(*arguments: Any, **options: Any) -> Any:
        start_time = time.perf_counter()
        try:
            return original(*arguments, **options)
        finally:
            seconds[name] += time.perf_counter() - start_time

    setattr(owner, function_name, call_timed)
    try:
        yield
    finally:
        setattr(owner, function_name, original)
