"""Dotted names that cannot be resolved are rejected in one line before training."""

import subprocess
import sys

import pytest

from attnlab.store.fingerprint import find_targets
from attnlab.training.preflight import check
from attnlab.training.targets import validate_targets

INVALID_NAMES = {
    "a misspelt class": (
        ["epilogue=gate", "model.attention.epilogue._target_=attnlab.attention.epilogue.Gatte"],
        r"^model.attention.epilogue._target_=attnlab.attention.epilogue.Gatte: "
        r"attnlab.attention.epilogue has no Gatte \(nearest: Gate\)$",
    ),
    "a misspelt module": (
        ["epilogue=gate", "model.attention.epilogue._target_=attnlab.attention.epilog.Gate"],
        r"attnlab.attention has no epilog \(nearest: epilogue\)$",
    ),
    "a cache, which training never builds": (
        ["decode=static", "decode.cache._target_=attnlab.attention.cache.Statics"],
        "^decode.cache._target_=attnlab.attention.cache.Statics: attnlab.attention.cache has no Statics",
    ),
    "what a getter gets": (
        ["model.attention.kernel.path=attnlab.attention.kernels.sdpa.spda"],
        "^model.attention.kernel.path=attnlab.attention.kernels.sdpa.spda: .* has no spda",
    ),
    "a getter without a path": (
        ["model.attention.kernel.path=null"],
        "^model.attention.kernel.path=None is not a dotted name",
    ),
    "a patch of a layer": (
        ["model.layers=[{},{epilogue: {_target_: attnlab.nowhere.Gate}}]"],
        r"^model.layers\[1\].epilogue._target_=attnlab.nowhere.Gate: attnlab has no nowhere",
    ),
    "a logger": (
        ["+logger.mine._target_=pytorch_lightning.loggers.CSVLoger"],
        r"^logger.mine._target_=.* has no CSVLoger \(nearest: CSVLogger",
    ),
    "a callback": (
        ["+callbacks=ema", "callbacks.ema._target_=pytorch_lightning.callbacks.EMA"],
        "^callbacks.ema._target_=pytorch_lightning.callbacks.EMA: pytorch_lightning.callbacks has no EMA",
    ),
    "a measurement": (
        ["measurement={_target_: attnlab.measure.studies.cache_bytes.CashBytes}"],
        r"^measurement._target_=.* has no CashBytes \(nearest: CacheBytes",
    ),
    "a conversion": (
        ["parent=x", "convert={_target_: attnlab.model.pooling.poolheads}"],
        r"^convert._target_=.* has no poolheads \(nearest: pool_heads",
    ),
    "the trainer": (
        ["trainer._target_=pytorch_lightning.Trainr"],
        r"^trainer._target_=.* has no Trainr \(nearest: Trainer",
    ),
    "no such package": (
        ["data.task._target_=mime.task.Task"],
        "^data.task._target_=mime.task.Task: there is no module mime; install it, or add the folder that",
    ),
    "no dots": (["optim._target_=LanguageModel"], "^optim._target_=LanguageModel is not a dotted name"),
    "a module": (
        ["optim._target_=attnlab.training.language_model"],
        "^optim._target_=attnlab.training.language_model is a module, which is not callable$",
    ),
}


@pytest.mark.parametrize("case", INVALID_NAMES)
def test_an_unresolved_name_is_rejected_with_its_key(compose, case):
    overrides, message = INVALID_NAMES[case]
    with pytest.raises(ValueError, match=message) as caught:
        check(compose(*overrides))
    assert "\n" not in str(caught.value)


@pytest.fixture
def write_module(tmp_path, monkeypatch):
    """`write_module(text)`: write the user's module `mine`."""
    monkeypatch.syspath_prepend(str(tmp_path))
    yield (tmp_path / "mine.py").write_text
    sys.modules.pop("mine", None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import tortch", "importing mine failed: ModuleNotFoundError: No module named 'tortch'"),
        ("def (:", "importing mine failed: SyntaxError: invalid syntax"),
        ("1 / 0", "importing mine failed: ZeroDivisionError: division by zero"),
    ],
)
def test_a_broken_module_is_reported_with_its_error(write_module, text, message):
    write_module(text)
    with pytest.raises(ValueError, match=f"^mask._target_=mine.window: {message}"):
        validate_targets({"mask": {"_target_": "mine.window"}})


def test_all_targets_of_a_config_are_found():
    config = {
        "a": {"_target_": "x.y", "path": "not.a.name", "b": [{"_target_": "z.w"}]},
        "c": {"_target_": "hydra.utils.get_class", "path": "u.v"},
        "d": {"_target_": None},
    }
    assert list(find_targets(config)) == [
        ("a._target_", "x.y"),
        ("a.b[0]._target_", "z.w"),
        ("c._target_", "hydra.utils.get_class"),
        ("c.path", "u.v"),
        ("d._target_", None),
    ]


@pytest.mark.rare
def test_a_command_with_a_wrong_name_exits_with_2_and_one_line(tmp_path):
    wrong = "decode.cache.path=attnlab.attention.cache.Nowhere"
    line = ["size=debug", "data=reverse", "logger=none", "trainer.accelerator=cpu", wrong]
    process = subprocess.run(
        [sys.executable, "-m", "attnlab", *line], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert (process.returncode, process.stdout) == (2, "")
    assert process.stderr.startswith(f"attnlab: {wrong}: attnlab.attention.cache has no Nowhere")
    assert process.stderr.count("\n") == 1
    assert not list(tmp_path.glob("runs/*/spec.json"))
