"""Command lines by lot: an axis value here and there, and some keys of `conf/` set to what nobody should."""

import inspect
import random
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
from hydra import initialize_config_dir
from hydra.core.config_loader import ConfigLoader
from hydra.core.global_hydra import GlobalHydra
from hydra.types import RunMode
from omegaconf import OmegaConf

from attnlab.config import CONF, register_resolvers
from attnlab.store.fingerprint import flatten
from attnlab.sweep.plan import config_files
from attnlab.training.settings import REFUSED

SETTINGS = inspect.signature(pl.Trainer).parameters.keys() - {"self", *REFUSED} | {"max_epochs", "logger"}
NASTY = (
    "1" + 30 * "0",
    "1e300", "-1e300", "1e-300", "true", "false", "nan", "inf", "-1", "0", "abc", "''", "[]", "{}",
    "null", "[abc]", "{a: 1}", "[0]", "[null]", "2147483648", "1000000000", "-0.5", "[1e300]",
    "{_target_: abc}",
    "'../..'", "'a b'", "0.5", "1.5",
)  # fmt: skip
AXES = (
    "model", "heads", "position", "score", "mask", "epilogue", "kernel", "decode", "data", "data/tokenizer",
    "parametrization", "optim",
)  # fmt: skip
ADDED = (  # keys that no file of conf/ has, and that are read, or look as if they were
    "sed", "data.num_workers", "data.lenght", "measure.evry", "paths.run", "sweep.slot",
    "model.attention.dropout",
    "model.attention.heads.qk_norm", "model.attention.heads.absorbed", "model.attention.heads.tied",
    "model.positions",
    "optim.momentum", "callbacks", "callbacks.mine", "convert", "protocol", "protocol.x", "launcher",
    "use", "size", "model.attention.scale_exponent", "logger.mode", "decode.cache",
)  # fmt: skip


@cache
def loader() -> ConfigLoader:
    """One for all: it reads `conf/` once."""
    register_resolvers()
    config_files.register()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return GlobalHydra.instance().config_loader()


def options(axis: str) -> list[str]:
    """The shipped values of an axis."""
    return sorted(path.stem for path in (CONF / axis).glob("*.yaml"))


def lines(seed: int, folder: Path) -> list[str]:
    """The command line of a number: tiny, over files in `folder` (`book.txt`, `names.txt`, `hub/`)."""
    random_ = random.Random(seed)
    chosen: dict[str, str] = {}
    for axis in random_.sample(AXES, random_.choice((1, 2, 3, 4))):
        if axis != "data/tokenizer":
            chosen[axis] = random_.choice(options(axis))
    chosen.setdefault("data", "text")
    if chosen["data"] in ("text", "pydocs", "hub") and random_.random() < 0.3:
        chosen["data/tokenizer"] = random_.choice(options("data/tokenizer"))
    where = {
        "text": [f"data.path={folder}/book.txt"],
        "names": [f"data.path={folder}/names.txt"],
        "hub": [f"data.name={folder}/hub", "data.streaming=false"],
    }
    line = [
        "size=debug", *(f"{axis}={value}" for axis, value in chosen.items()), *where.get(chosen["data"], []),
        *([] if chosen["data"] == "names" else ["data.val_windows=5"]),
        "trainer.max_steps=2", "measure.timing=false", "logger=none",
        "+callbacks=ema" if seed % 29 == 0 else "seed=0",
        f"paths.cache={folder}/cache", f"paths.runs={folder}/runs", f"paths.reports={folder}/reports",
    ]  # fmt: skip
    there = _leaves(tuple(line))
    targets = [key for key in there if key.rpartition(".")[2] in ("_target_", "path", "_partial_")]
    plain = sorted(there.keys() - targets)
    whole = sorted({above for key in there for above in _above(key)})
    settings = [f"trainer.{key}" for key in sorted(SETTINGS)]
    for pool in random_.choices(
        (plain, whole, ADDED, settings, targets), (16, 2, 2, 2, 1), k=random_.randint(1, 3)
    ):
        key = random_.choice(pool)
        nasty = key not in there or random_.random() < 0.4
        value = random_.choice(NASTY if nasty else _near(there[key]))
        line.append(f"{'' if key in ('seed', 'size') else '++'}{key}={value}")
    return line


@cache
def _leaves(line: tuple[str, ...]) -> dict[str, Any]:
    """Every dotted key of what a line composes to, with its value as it is written."""
    config = loader().load_configuration("config", list(line), RunMode.RUN)
    plain: Any = OmegaConf.to_container(config, resolve=False)
    plain.pop("hydra")
    return {key: value for key, value in flatten(plain) if not key.startswith("paths.")} | {"paths.runs": ""}


def _near(value: Any) -> list[str]:
    """Values that may well do in the place of one."""
    if isinstance(value, bool):
        return ["true", "false"]
    if isinstance(value, int):
        return [str(near) for near in (0, 1, 2, value - 1, value + 1, 2 * value, 3 * value, value // 2)]
    if isinstance(value, float):
        return [str(near) for near in (0, 1, value / 10, value * 10, value / 1e9, value * 1e9, value * 1e30)]
    if isinstance(value, str) and value.startswith("${"):
        return ["1", "2", "3", "4", "5", "8", "16", "24", "0.5"]
    return ["null", "1", "0.5", "8", "true", "auto", "[]", "{}"]


def _above(key: str) -> Iterator[str]:
    while key := key.rpartition(".")[0]:
        yield key
