"""Trusted names of a stored config; no other name is looked up."""

import sys

import pytest
import yaml

from attnlab.config import CONF
from attnlab.errors import InvalidConfig
from attnlab.store import fingerprint
from attnlab.store.guards import trust

MASK = {"_target_": "attnlab.attention.masks.window.window", "width": 3}
KERNEL = {"_target_": "hydra.utils.get_method", "path": "attnlab.attention.kernels.sdpa.sdpa"}


@pytest.fixture(autouse=True)
def config_home(tmp_path, monkeypatch):
    """Configuration folder of a user who has trusted no module yet."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "config"


@pytest.fixture
def user_module(tmp_path, monkeypatch):
    """A user's module with its own function, and objects of other modules under its name."""
    (tmp_path / "mine.py").write_text("import subprocess\nfrom os import system\n\ndef banded(): ...\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "mine"
    sys.modules.pop("mine", None)


def check_node(node, tmp_path):
    trust.require_trusted_objects({"model": {"attention": {"part": node}}}, tmp_path / "spec.json")


def test_all_shipped_configs_are_trusted(tmp_path):
    contents = [yaml.safe_load(path.read_text()) for path in sorted(CONF.rglob("*.yaml"))]
    names = {name for name in fingerprint.find_target_names(contents) if name not in trust.GETTER_TARGETS}
    assert len(names) > 50
    for name in names:
        check_node({"_target_": name}, tmp_path)


@pytest.mark.parametrize(
    "name",
    [
        "os.system",
        "builtins.eval",
        "builtins.open",
        "subprocess.run",
        "torch.load",
        "torch.hub.load",
        "torch.nn.functional.torch.hub.load",
        "torch.nn.parallel.distributed.os.system",
        "hydra.utils.instantiate",
        "hydra.utils.call",
        "omegaconf.OmegaConf.load",
        "attnlab.cli.main.main",
        "attnlab.model.build.instantiate_config",
        "attnlab.sweep.plan.trainer.load_trainer",
        "attnlab.store.atomic_files.write_json",
        "attnlab.testing.verify",
        "attnlab.data.text.os.system",
        "attnlab.data.text.write",
        "attnlab.data.text.code_corpus",
        "attnlab.data.data_module.torch.load",
        "attnlab.attention.layer.nn.Module.register_forward_hook",
        "attnlab.model.transformer.Transformer.__init__",
        "attnlab.training.loggers.wandb_logger.WandbSettings.open_run",
        "pytorch_lightning.callbacks.model_checkpoint.os.system",
        "pytorch_lightning.loggers.csv_logs.os.system",
        "pytorch_lightning.Trainer.fit",
        "eval",
        "",
    ],
)
def test_harmful_names_are_rejected_in_every_form(name, tmp_path):
    for node in (
        {"_target_": name},
        {"_target_": "hydra.utils.get_method", "path": name},
        {"_target_": "hydra.utils.get_object", "path": name},
        {"_target_": MASK["_target_"], "width": [{"_target_": name}]},
    ):
        with pytest.raises(InvalidConfig) as refused:
            check_node(node, tmp_path)
        assert "\n" not in str(refused.value)
        assert str(tmp_path / "spec.json") in str(refused.value)


@pytest.mark.parametrize(
    "node",
    [
        {"_target_": "hydra.utils.get_method", "_args_": ["os.system"]},
        {"_target_": "hydra.utils.get_method", "path": KERNEL},
        {"_target_": "hydra.utils.get_method", "path": KERNEL["path"], "_args_": ["os.system"]},
        {"_target_": ["os.system"]},
        {"_target_": {"_target_": "os.system"}},
        {"_target_": "${x}", "x": "os.system"},
        {"part": "${oc.create:'{_target_: os.system}'}"},
        {"part": "${oc.env:HOME}"},
        {"${oc.env:HOME}": 1},
    ],
)
def test_names_that_only_building_would_reveal_are_rejected(node, tmp_path):
    with pytest.raises(InvalidConfig):
        check_node(node, tmp_path)


@pytest.mark.parametrize(
    "patch",
    [{"kernel": {"path": "os.system"}}, {"window": {"_target_": "os.system"}}, {"part": "${oc.env:HOME}"}],
)
def test_layer_patches_are_checked_as_merged(patch, tmp_path):
    config = {"model": {"attention": {"kernel": KERNEL, "window": MASK}, "layers": [{}, patch]}}
    with pytest.raises(InvalidConfig):
        trust.require_trusted_objects(config, tmp_path / "spec.json")
    config["model"]["layers"] = [{"kernel": {"path": "attnlab.attention.kernels.eager.eager"}}]
    trust.require_trusted_objects(config, tmp_path / "spec.json")


def test_a_module_is_not_imported_before_it_is_trusted(tmp_path, user_module):
    node = {"_target_": "mine.banded"}
    with pytest.raises(
        InvalidConfig, match=r"attention.part._target_ = mine.banded: .* run attnlab --trust mine once$"
    ):
        check_node(node, tmp_path)
    assert "mine" not in sys.modules
    trust.trust_module("mine")
    check_node(node, tmp_path)
    assert "mine" in sys.modules


def test_names_composed_by_the_command_need_no_trust(tmp_path, user_module):
    trust.declare_names([{"sweep": {"train": "mine.other"}}])
    check_node({"_target_": "mine.banded"}, tmp_path)
    trust.declare_names([{"data": {"_target_": "other.banded"}}])
    with pytest.raises(InvalidConfig):
        check_node({"_target_": "mine.banded"}, tmp_path)


@pytest.mark.parametrize("name", ["numpy.load", "yaml.unsafe_load", "torch.optim.swa_utils.warnings.warn"])
def test_a_composed_name_of_a_library_covers_no_other_name_of_it(name, tmp_path):
    composed = ["numpy.float64", "yaml.safe_load", "torch.optim.swa_utils.SWALR"]
    trust.declare_names([{"model": {"parts": [{"_target_": each} for each in composed]}}])
    check_node({"_target_": composed[0]}, tmp_path)
    with pytest.raises(InvalidConfig, match="not trusted"):
        check_node({"_target_": name}, tmp_path)


@pytest.mark.parametrize("name", ["mine.subprocess.run", "mine.system"])
def test_a_trusted_module_covers_only_its_own_objects(name, tmp_path, user_module):
    trust.trust_module("mine")
    with pytest.raises(InvalidConfig, match=r"which refers to (subprocess.run|posix.system)"):
        check_node({"_target_": name}, tmp_path)


def test_trust_is_stored_once_in_the_user_config_folder(config_home):
    for module in ("mine", "yours.parts", "mine"):
        assert trust.trust_module(module) == config_home / "attnlab" / "trusted"
    assert trust.load_trusted_modules() == ("mine", "yours.parts")


@pytest.mark.parametrize(
    ("module", "library"),
    [
        ("os", "Python"), ("builtins", "Python"), ("__main__", "Python"), ("attnlab", "attnlab"),
        ("attnlab.cli", "attnlab"), ("hydra.utils", "hydra-core"), ("torch", "torch"), ("torch.hub", "torch"),
        ("numpy", "numpy"), ("yaml", "PyYAML"), ("pip", "pip"), ("", ""), ("a b", ""), ("-x", ""),
    ],
)  # fmt: skip
def test_libraries_cannot_be_trusted_as_a_whole(module, library, config_home, tmp_path):
    with pytest.raises(InvalidConfig, match=f"--trust {module}: .*{library}"):
        trust.trust_module(module)
    assert trust.load_trusted_modules() == ()
    (config_home / "attnlab").mkdir(parents=True)  # recorded by an earlier version
    (config_home / "attnlab" / "trusted").write_text(f"{module}\n")
    with pytest.raises(InvalidConfig, match=r"not trusted|not a valid"):
        check_node({"_target_": f"{module}.load"}, tmp_path)


def test_an_installed_package_that_attnlab_does_not_use_can_be_trusted(tmp_path, monkeypatch):
    (tmp_path / "plugin.py").write_text("def banded(): ...\n")
    (tmp_path / "plugin-1.0.dist-info").mkdir()
    (tmp_path / "plugin-1.0.dist-info" / "METADATA").write_text("Name: plugin\nVersion: 1.0\n")
    (tmp_path / "plugin-1.0.dist-info" / "RECORD").write_text("plugin.py,,\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    trust._map_library_packages.cache_clear()
    trust.trust_module("plugin")
    check_node({"_target_": "plugin.banded"}, tmp_path)
    sys.modules.pop("plugin")
