"""Random command lines: options of some axes, and keys of `conf/` with invalid or extreme values."""

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
from attnlab.store.fingerprint import flatten_config
from attnlab.sweep.plan import config_files
from attnlab.training.trainer_settings import REJECTED_SETTINGS

SETTINGS = inspect.signature(pl.Trainer).parameters.keys() - {"self", *REJECTED_SETTINGS} | {
    "max_epochs",
    "logger",
}
INVALID_VALUES = (
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
EXTRA_KEYS = (  # keys absent from conf/ that are read, or look so
    "sed", "data.num_workers", "data.lenght", "measure.evry", "paths.run", "sweep.slot",
    "model.attention.dropout",
    "model.attention.heads.qk_norm", "model.attention.heads.absorbed", "model.attention.heads.tied",
    "model.positions",
    "optim.momentum", "callbacks", "callbacks.mine", "convert", "protocol", "protocol.x", "launcher",
    "use", "size", "model.attention.scale_exponent", "logger.mode", "decode.cache",
)  # fmt: skip


@cache
def load_config_loader() -> ConfigLoader:
    """Load `conf/` once."""
    register_resolvers()
    config_files.register_config_source()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return GlobalHydra.instance().config_loader()


def list_axis_options(axis: str) -> list[str]:
    """List the shipped options of an axis."""
    return sorted(path.stem for path in (CONF / axis).glob("*.yaml"))


def draw_line(seed: int, folder: Path) -> list[str]:
    """Draw the line of a seed: a tiny run over files in `folder` (`book.txt`, `names.txt`, `hub/`)."""
    random_ = random.Random(seed)
    selected: dict[str, str] = {}
    for axis in random_.sample(AXES, random_.choice((1, 2, 3, 4))):
        if axis != "data/tokenizer":
            selected[axis] = random_.choice(list_axis_options(axis))
    selected.setdefault("data", "text")
    if selected["data"] in ("text", "pydocs", "hub") and random_.random() < 0.3:
        selected["data/tokenizer"] = random_.choice(list_axis_options("data/tokenizer"))
    data_overrides = {
        "text": [f"data.path={folder}/book.txt", "data.allow_overlap=true"],
        "names": [f"data.path={folder}/names.txt"],
        "hub": [f"data.name={folder}/hub", "data.streaming=false", "data.allow_overlap=true"],
    }
    line = [
        "size=debug", *(f"{axis}={value}" for axis, value in selected.items()),
        *data_overrides.get(selected["data"], []),
        *([] if selected["data"] == "names" else ["data.val_windows=5"]),
        "trainer.max_steps=2", "measure.timing=false", "logger=none",
        "+callbacks=ema" if seed % 29 == 0 else "seed=0",
        f"paths.cache={folder}/cache", f"paths.runs={folder}/runs", f"paths.reports={folder}/reports",
    ]  # fmt: skip
    leaves = _compose_leaves(tuple(line))
    targets = [key for key in leaves if key.rpartition(".")[2] in ("_target_", "path", "_partial_")]
    plain_keys = sorted(leaves.keys() - targets)
    parents = sorted({parent for key in leaves for parent in _iter_parents(key)})
    settings = [f"trainer.{key}" for key in sorted(SETTINGS)]
    for keys in random_.choices(
        (plain_keys, parents, EXTRA_KEYS, settings, targets), (16, 2, 2, 2, 1), k=random_.randint(1, 3)
    ):
        key = random_.choice(keys)
        use_invalid = key not in leaves or random_.random() < 0.4
        value = random_.choice(INVALID_VALUES if use_invalid else _list_similar_values(leaves[key]))
        line.append(f"{'' if key in ('seed', 'size') else '++'}{key}={value}")
    return line


@cache
def _compose_leaves(line: tuple[str, ...]) -> dict[str, Any]:
    """Compose a line and return its dotted keys with unresolved values."""
    config = load_config_loader().load_configuration("config", list(line), RunMode.RUN)
    plain_keys: Any = OmegaConf.to_container(config, resolve=False)
    plain_keys.pop("hydra")
    return {key: value for key, value in flatten_config(plain_keys) if not key.startswith("paths.")} | {
        "paths.runs": ""
    }


def _list_similar_values(value: Any) -> list[str]:
    """List plausible replacements of a value."""
    if isinstance(value, bool):
        return ["true", "false"]
    if isinstance(value, int):
        return [str(similar) for similar in (0, 1, 2, value - 1, value + 1, 2 * value, 3 * value, value // 2)]
    if isinstance(value, float):
        return [
            str(similar) for similar in (0, 1, value / 10, value * 10, value / 1e9, value * 1e9, value * 1e30)
        ]
    if isinstance(value, str) and value.startswith("${"):
        return ["1", "2", "3", "4", "5", "8", "16", "24", "0.5"]
    return ["null", "1", "0.5", "8", "true", "auto", "[]", "{}"]


def _iter_parents(key: str) -> Iterator[str]:
    while key := key.rpartition(".")[0]:
        yield key
