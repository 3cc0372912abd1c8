"""How long a run's steps take here: a few are taken, of few rows where a whole batch would take long.

Surprising: they are Lightning's own steps, since at small sizes its loop costs as much as the arithmetic; of
a model whose rows take long, few layers are tried; and on a CPU it is the time that a core was busy, so that
what else the machine does just now is not taken for the run's.
"""

import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from statistics import mean
from tempfile import TemporaryDirectory
from typing import Any, final

import pytorch_lightning as pl
import torch
from lightning_fabric.plugins.environments import LightningEnvironment

from attnlab.data.module import Steps
from attnlab.measure.size import flops_per_token, parameters
from attnlab.measure.timing import wait
from attnlab.model.build import build_model, device_of, make, mixer_configs
from attnlab.training import settings

SECONDS = 0.7  # that the steps of one number of rows take, about
LEAST, MOST = 3, 50  # steps of one number of rows; the first one warms up and does not count
FLOPS = {"cpu": 5e10, "cuda": 5e13}  # of one row's step, which takes about a second at this many
NOT_TRIED = ("accumulate_grad_batches", "devices", "strategy", "profiler", "log_every_n_steps", "max_steps")


def trial(config: Mapping[str, Any]) -> dict[str, float] | None:
    """Seconds until the first step (`start`), of an optimiser step (`step`), and of validating one row
    (`row`), with the threads that torch has now. None where nothing is trained, where a compiler would run
    for minutes, and where one row of few layers takes too long.
    """
    if config.get("measurement") or config["optim"].get("compile"):
        return None
    device = device_of(config)
    now = clock(device)
    began = now()
    data = make(config["data"])
    made = now() - began
    tried, share = _with_few_layers(config, data.task, FLOPS[device])
    if tried is None:
        return None
    began = now()
    module = make(tried["optim"], model=build_model(tried, data.task.vocab_size))
    rows = max(1, data.batch_size // config["trainer"]["devices"])
    one = Watch(data, 1, device)
    _fit(tried["trainer"], module, one)
    start = made + one.first - began
    some = Watch(data, min(rows, max(1, int(2 * SECONDS / LEAST / one.quickest))), device)
    if some.rows > 1:
        _fit(tried["trainer"], module, some)
    else:
        some = one
    # what a step takes whatever its rows are is in each of the parts of a whole batch, and belongs in one
    once, parts = max(0.0, one.quickest - some.quickest / some.rows), rows / some.rows
    step = parts * some.step - (parts - 1) * once
    began = now()
    data.task.train_batch(data.seed, 0, data.batch_size)
    drawn = now() - began
    step = config["trainer"]["accumulate_grad_batches"] * (drawn + share * step)
    found = {"start": start, "step": step, "row": share * some.row}
    return {key: float(f"{value:.3g}") for key, value in found.items()}


def clock(device: str) -> Callable[[], float]:
    """Seconds: of work where the CPU does it, in all where another device does."""
    return time.thread_time if device == "cpu" else time.perf_counter


def _with_few_layers(
    config: Mapping[str, Any], task: Any, most: float
) -> tuple[Mapping[str, Any] | None, float]:
    """The config, with one layer of each kind where a row's step has more than so many FLOPs, and how much
    longer a step of the whole model takes; None where that is still ten times too much.
    """

    def model(config: Mapping[str, Any]) -> Any:
        with torch.device("meta"):
            return build_model(config, task.vocab_size)

    def work(config: Mapping[str, Any]) -> int:
        return flops_per_token(model(config), task.length) * task.length

    if 12 * parameters(model(config))["parameters"] * task.length <= most:  # it need not be counted
        return config, 1.0
    whole = work(config)
    if whole <= most:
        return config, 1.0
    few = {**config, "model": {**config["model"], "n_layers": len(mixer_configs(config))}}
    part = work(few)
    return (few if part <= 10 * most else None), whole / part


@final
class Watch(pl.Callback):
    """Feeds so many rows to a trainer again and again, and takes the times: of a `step`, of the `quickest`
    one, and of validating a `row`; `first` is when the first step began.
    """

    def __init__(self, data: Any, rows: int, device: str) -> None:
        self.rows, self.device, self.now = rows, device, clock(device)
        self.batch = data.task.train_batch(data.seed, 0, rows)
        self.validation = {key: value[:rows] for key, value in next(iter(data.val_dataloader())).items()}
        self.starts: list[float] = []
        self.validated: list[float] = []

    def __iter__(self) -> Iterator[Any]:
        began = time.perf_counter()
        for number in range(MOST + 1):
            took = time.perf_counter() - began
            if (number > LEAST and took > SECONDS) or (number > 2 and took > 2 * SECONDS):
                return
            yield self.batch

    @property
    def first(self) -> float:
        return self.starts[0]

    @property
    def _took(self) -> list[float]:
        took = [b - a for a, b in pairwise(self.starts)]
        return took[1:] or took

    @property
    def step(self) -> float:
        return mean(self._took)

    @property
    def quickest(self) -> float:
        return min(self._took)

    @property
    def row(self) -> float:
        return self.validated[-1] / len(self.validation["tokens"])

    def on_train_batch_start(self, trainer: pl.Trainer, module: Any, batch: Any, batch_idx: int) -> None:
        """From one start to the next it is a whole step, with all that Lightning does between."""
        wait(self.device)
        self.starts.append(self.now())

    def on_validation_batch_start(
        self, trainer: pl.Trainer, module: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Starts the clock."""
        wait(self.device)
        self._began = self.now()

    def on_validation_batch_end(
        self,
        trainer: pl.Trainer,
        module: Any,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Stops it."""
        wait(self.device)
        self.validated.append(self.now() - self._began)


def _fit(chosen: Mapping[str, Any], module: pl.LightningModule, watch: Watch) -> None:
    """A trainer with the settings of a run's takes the steps, and validates twice."""
    kept = {key: value for key, value in chosen.items() if key not in NOT_TRIED}
    with settings.quiet(), warnings.catch_warnings(), TemporaryDirectory() as folder:
        warnings.simplefilter("ignore")
        trainer = make(
            {**kept, "devices": 1, "max_steps": MOST + 1, "log_every_n_steps": MOST},
            **settings.QUIET,
            logger=False,
            default_root_dir=folder,
            max_epochs=1,
            plugins=[LightningEnvironment()],
            callbacks=[watch],
        )
        twice = Steps(lambda _: [watch.validation], start=lambda: 0, stop=2, workers=0)
        trainer.fit(module, watch, twice)
