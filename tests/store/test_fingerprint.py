import sys
from pathlib import Path

import pytest

from attnlab.errors import Refused
from attnlab.store import fingerprint, source
from attnlab.store.schema import Estimate

CONFIG = {
    "seed": 0, "model": {"dim": 7, "n_heads": 2, "attention": {"_target_": "mine.variant.Heads", "n": 2}},
    "trainer": {"max_steps": 5, "log_every_n_steps": 50}, "data": {"num_workers": 0, "path": "a"},
    "measure": {"maps": 4, "timing": True},
    "paths": {"runs": "runs"}, "logger": {"mode": "offline"},
    "sweep": {"slots": 1}, "margin": 0.1, "id": None,
}  # fmt: skip
ESTIMATE = Estimate(data={"sha256": "d"}, device_kind="cpu")


def identity(config=CONFIG, estimate=ESTIMATE, source=None):
    return fingerprint.identify(config, estimate, source or {})[0]


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
        "data.max_epochs",
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
        identity(estimate=Estimate(data={"sha256": "e"})),
        identity(estimate=Estimate(data={"sha256": "d"}, device_kind="H200")),
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


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("x = 1\n", "x = 1  # why\n"),
        ("x = 1\n", "# why\n\n\nx = 1\n"),
        (
            'def f():\n    """Once."""\n    return 1\n',
            'def f():\n    """Twice.\n\n    More.\n    """\n    return 1\n',
        ),
        ('"""A."""\nx = (1, 2)\n', '"""B."""\nx = (\n    1,\n    2\n)\n'),
        ("class A:\n    'One.'\n    x = 1\n", "class A:\n    x = 1\n"),
    ],
)
def test_comments_docstrings_and_layout_do_not_count(before, after):
    assert source.tokens(before) == source.tokens(after)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("x = 1\n", "x = 2\n"),
        ("x = 'a # b'\n", "x = 'a # c'\n"),
        ("if a:\n    b()\nc()\n", "if a:\n    b()\n    c()\n"),
        ("not a\n", "nota\n"),
        ("f('''one''')\n", "f('''two''')\n"),
        ("x = f'{a} b'\n", "x = f'{a}  b'\n"),
    ],
)
def test_a_statement_counts(before, after):
    assert source.tokens(before) != source.tokens(after)


def test_an_edit_of_a_comment_of_a_users_module_leaves_the_source(mine):
    before = fingerprint.source(CONFIG, "mine.unrelated")
    (mine / "variant.py").write_text("# mine\n" + (mine / "variant.py").read_text())
    assert fingerprint.source(CONFIG, "mine.unrelated") == before


TRAINED = {
    "model": {
        "_target_": "attnlab.model.transformer.Transformer",
        "attention": {"_target_": "attnlab.attention.layer.Attention"},
    },
    "optim": {"_target_": "attnlab.training.module.LanguageModel"},
}


def test_a_training_run_hashes_training_code_and_nothing_that_only_looks():
    found = set(fingerprint.source(TRAINED, "attnlab.training.run"))
    assert {
        "attnlab.training.run",
        "attnlab.training.module",
        "attnlab.training.checkpoints",
        "attnlab.model.transformer",
        "attnlab.attention.layer",
        "attnlab.attention.contracts",
        "attnlab.store.seeds",
    } <= found
    found.remove("attnlab.store.seeds")  # what it gives decides every number
    found.discard("attnlab.store")
    for observer in ("sweep", "report", "stats", "store", "cli", "measure", "testing", "training.end"):
        observed = [name for name in found if f"{name}.".startswith(f"attnlab.{observer}.")]
        assert not observed, observed


def test_a_run_that_only_measures_hashes_what_measures():
    config = TRAINED | {"measurement": {"_target_": "attnlab.measure.studies.losses.Losses"}}
    found = set(fingerprint.source(config, "attnlab.training.run"))
    assert {"attnlab.measure.studies.losses", "attnlab.measure.length"} <= found


def test_torchs_and_lightnings_minor_versions_are_in_the_id_and_their_patches_are_not(monkeypatch, request):
    request.addfinalizer(fingerprint.minor_versions.cache_clear)

    def made_with(torch, lightning):
        versions = {"torch": torch, "pytorch-lightning": lightning}
        monkeypatch.setattr(fingerprint, "version", versions.__getitem__)
        fingerprint.minor_versions.cache_clear()
        return identity()

    here = made_with("2.13.0+cpu", "2.6.6")
    assert made_with("2.13.1", "2.6.0") == here
    assert made_with("2.12.0+cpu", "2.6.6") != here
    assert made_with("2.13.0+cpu", "2.7.0") != here


@pytest.mark.parametrize("value", [object(), {1, 2}, b"bytes", float("nan"), 1j])
def test_a_value_without_a_canonical_form_is_refused_and_named(value):
    with pytest.raises(Refused) as refused:
        identity(changed("model.odd", value))
    assert "\n" not in str(refused.value)
    assert isinstance(value, float) or "model.odd" in str(refused.value)
