import sys
from pathlib import Path

import pytest

from attnlab.store import fingerprint

CONFIG = {
    "seed": 0, "model": {"dim": 7, "n_heads": 2, "attention": {"_target_": "mine.variant.Heads", "n": 2}},
    "trainer": {"max_steps": 5, "log_every_n_steps": 50}, "data": {"num_workers": 0, "path": "a"},
    "measure": {"maps": 4, "timing": True},
    "paths": {"runs": "runs"}, "logger": {"mode": "offline"},
    "sweep": {"slots": 1}, "margin": 0.1, "id": None,
}  # fmt: skip
FIGURES = {"data": {"sha256": "d"}, "device_kind": "cpu"}


def identity(config=CONFIG, figures=FIGURES, source=None):
    return fingerprint.identify(config, figures, source or {})[0]


def changed(key, value):
    first, _, rest = key.partition(".")
    return {**CONFIG, first: {**CONFIG[first], rest: value} if rest else value}


@pytest.mark.parametrize(
    "key",
    [
        "paths.runs",
        "logger.mode",
        "sweep.slots",
        "data.num_workers",
        "data.path",
        "measure.timing",
        "trainer.log_every_n_steps",
        "margin",
        "id",
    ],
)
def test_what_cannot_change_a_result_leaves_the_id(key):
    assert identity(changed(key, "other")) == identity()


@pytest.mark.parametrize(
    "key", ["seed", "replica", "parent", "model.dim", "model.attention", "trainer.max_steps", "data.new"]
)
def test_everything_else_changes_the_id(key):
    assert identity(changed(key, 11)) != identity()


def test_data_device_and_source_change_the_id():
    ids = {
        identity(),
        identity(figures={**FIGURES, "data": {"sha256": "e"}}),
        identity(figures={**FIGURES, "device_kind": "H200"}),
        identity(source={"module": "abc"}),
    }
    assert len(ids) == 4


def test_an_id_is_sixteen_hex_digits_whatever_the_order_of_keys():
    assert identity(dict(reversed(CONFIG.items()))) == identity()
    assert len(identity()) == 16
    assert int(identity(), 16) >= 0


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "helper.py").write_text("FACTOR = 2\n")
    (folder / "unrelated.py").write_text("FACTOR = 2\n")
    (folder / "variant.py").write_text(
        "import torch\nfrom .helper import FACTOR\nclass Heads: ...\nraise SystemExit\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    return folder


def test_source_is_the_users_module_and_what_it_imports_and_nothing_is_run(mine):
    found = fingerprint.source(CONFIG, "mine.unrelated")
    assert list(found) == ["mine", "mine.helper", "mine.unrelated", "mine.variant"]
    assert "mine" not in sys.modules


@pytest.mark.parametrize("name", ["variant", "helper"])
def test_editing_a_users_module_or_its_helper_changes_the_source(mine, name):
    before = fingerprint.source(CONFIG, "mine.unrelated")
    (mine / f"{name}.py").write_text((mine / f"{name}.py").read_text() + "CHANGED = 1\n")
    after = fingerprint.source(CONFIG, "mine.unrelated")
    assert [module for module in before if before[module] != after[module]] == [f"mine.{name}"]


def test_a_training_run_hashes_training_code_and_no_report_or_sweep_code():
    found = fingerprint.source(
        {"model": {"_target_": "attnlab.model.transformer.Transformer"}}, "attnlab.training.run"
    )
    assert {
        "attnlab.training.run",
        "attnlab.model.transformer",
        "attnlab.training.module",
        "attnlab.attention.kernels",
    } <= set(found)
    for module in found:
        assert module.split(".")[1] not in ("sweep", "report", "stats", "files", "mirror", "__main__"), module
