"""Run ids: every input of a result changes them, and nothing else."""

import shutil
import sys
import zipfile
from pathlib import Path

import pytest

from attnlab.errors import InvalidConfig
from attnlab.store import fingerprint, source_digests
from attnlab.store.run_schema import RunEstimate

CONFIG = {
    "seed": 0, "model": {"dim": 7, "n_heads": 2, "attention": {"_target_": "mine.variant.Heads", "n": 2}},
    "trainer": {"max_steps": 5, "log_every_n_steps": 50}, "data": {"num_workers": 0, "path": "a"},
    "measure": {"maps": 4, "timing": True},
    "paths": {"runs": "runs"}, "logger": {"mode": "offline"},
    "sweep": {"slots": 1}, "margin": 0.1, "id": None,
}  # fmt: skip
ESTIMATE = RunEstimate(data={"sha256": "d"}, device_kind="cpu")


def compute_id(config=CONFIG, estimate=ESTIMATE, source=None):
    return fingerprint.compute_run_id(config, estimate, source or {})[0]


def with_value(key, value):
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
        "data.validation_path",
        "data.validation_split",
        "data.text_key",
        "data.normalize",
        "data.max_epochs",
        "data.allow_overlap",
        "measure.timing",
        "trainer.log_every_n_steps",
        "margin",
        "id",
    ],
)
def test_excluded_keys_leave_the_id(key):
    assert compute_id(with_value(key, "other")) == compute_id()


@pytest.mark.parametrize(
    "key", ["seed", "replica", "parent", "model.dim", "model.attention", "trainer.max_steps", "data.new"]
)
def test_all_other_keys_change_the_id(key):
    assert compute_id(with_value(key, 11)) != compute_id()


def test_data_device_and_source_change_the_id():
    ids = {
        compute_id(),
        compute_id(estimate=RunEstimate(data={"sha256": "e"})),
        compute_id(estimate=RunEstimate(data={"sha256": "d"}, device_kind="H200")),
        compute_id(source={"module": "abc"}),
    }
    assert len(ids) == 4


def test_an_id_is_sixteen_hex_digits_whatever_the_order_of_keys():
    assert compute_id(dict(reversed(CONFIG.items()))) == compute_id()
    assert len(compute_id()) == 16
    assert int(compute_id(), 16) >= 0


@pytest.fixture
def user_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
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


def test_source_covers_user_modules_and_their_imports_without_running_them(user_package):
    modules = fingerprint.hash_run_source(CONFIG, "mine.unrelated")
    assert list(modules) == ["mine", "mine.helper", "mine.unrelated", "mine.variant"]
    assert "mine" not in sys.modules


@pytest.mark.parametrize("name", ["variant", "helper"])
def test_editing_a_users_module_or_its_helper_changes_the_source(user_package, name):
    before = fingerprint.hash_run_source(CONFIG, "mine.unrelated")
    (user_package / f"{name}.py").write_text((user_package / f"{name}.py").read_text() + "CHANGED = 1\n")
    after = fingerprint.hash_run_source(CONFIG, "mine.unrelated")
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
    assert source_digests.strip_to_tokens(before) == source_digests.strip_to_tokens(after)


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
    assert source_digests.strip_to_tokens(before) != source_digests.strip_to_tokens(after)


def test_an_edit_of_a_comment_of_a_users_module_leaves_the_source(user_package):
    before = fingerprint.hash_run_source(CONFIG, "mine.unrelated")
    (user_package / "variant.py").write_text("# mine\n" + (user_package / "variant.py").read_text())
    assert fingerprint.hash_run_source(CONFIG, "mine.unrelated") == before


TRAINED = {
    "model": {
        "_target_": "attnlab.model.transformer.Transformer",
        "attention": {"_target_": "attnlab.attention.layer.Attention"},
    },
    "optim": {"_target_": "attnlab.training.language_model.LanguageModel"},
}


def test_a_training_run_hashes_training_code_and_no_observer():
    modules = set(fingerprint.hash_run_source(TRAINED, "attnlab.training.run"))
    assert {
        "attnlab.training.run",
        "attnlab.training.language_model",
        "attnlab.training.checkpoints",
        "attnlab.model.transformer",
        "attnlab.attention.layer",
        "attnlab.attention.contracts",
        "attnlab.store.seeds",
    } <= modules
    modules.remove("attnlab.store.seeds")  # it decides every random number
    modules.discard("attnlab.store")
    for observer in (
        "sweep",
        "report",
        "stats",
        "store",
        "cli",
        "measure",
        "testing",
        "training.final_metrics",
    ):
        observed = [name for name in modules if f"{name}.".startswith(f"attnlab.{observer}.")]
        assert not observed, observed


def test_a_measurement_run_hashes_the_measuring_code():
    config = TRAINED | {
        "measurement": {"_target_": "attnlab.measure.studies.validation_losses.ValidationLosses"}
    }
    modules = set(fingerprint.hash_run_source(config, "attnlab.training.run"))
    assert {"attnlab.measure.studies.validation_losses", "attnlab.measure.length_generalization"} <= modules


def test_the_id_has_minor_versions_of_torch_and_lightning_and_no_patch_versions(monkeypatch, request):
    request.addfinalizer(fingerprint.get_minor_versions.cache_clear)

    def compute_id_with(torch, lightning):
        versions = {"torch": torch, "pytorch-lightning": lightning}
        monkeypatch.setattr(fingerprint, "version", versions.__getitem__)
        fingerprint.get_minor_versions.cache_clear()
        return compute_id()

    id_before = compute_id_with("2.13.0+cpu", "2.6.6")
    assert compute_id_with("2.13.1", "2.6.0") == id_before
    assert compute_id_with("2.12.0+cpu", "2.6.6") != id_before
    assert compute_id_with("2.13.0+cpu", "2.7.0") != id_before


@pytest.mark.parametrize("value", [object(), {1, 2}, b"bytes", float("nan"), 1j])
def test_a_value_without_canonical_form_is_rejected_with_its_key(value):
    with pytest.raises(InvalidConfig) as refused:
        compute_id(with_value("model.odd", value))
    assert "\n" not in str(refused.value)
    assert isinstance(value, float) or "model.odd" in str(refused.value)


def test_module_in_a_zip_archive_is_hashed_like_its_file(user_package, tmp_path, monkeypatch):
    expected = fingerprint.hash_run_source(CONFIG, "mine.unrelated")
    with zipfile.ZipFile(tmp_path / "library.zip", "w") as archive:
        for file in user_package.glob("*.py"):
            archive.write(file, f"mine/{file.name}")
    shutil.rmtree(user_package)
    monkeypatch.syspath_prepend(tmp_path / "library.zip")
    assert fingerprint.hash_run_source(CONFIG, "mine.unrelated") == expected


def test_module_in_an_installed_package_is_hashed_like_its_file(user_package, tmp_path, monkeypatch):
    with (user_package / "variant.py").open("a") as file:
        file.write("import installed_elsewhere\n")
    expected = fingerprint.hash_run_source(CONFIG, "mine.unrelated")
    folder = tmp_path / "site-packages"
    folder.mkdir()
    shutil.move(user_package, folder)
    (folder / "installed_elsewhere.py").touch()
    monkeypatch.syspath_prepend(folder)
    assert fingerprint.hash_run_source(CONFIG, "mine.unrelated") == expected
    libraries = {
        "model": {"_target_": "torch.nn.GELU"},
        "callbacks": {"_target_": "pytorch_lightning.Callback"},
    }
    assert fingerprint.hash_run_source(libraries, "json") == {}
