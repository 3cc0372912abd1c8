"""What a stored config may name, and that nothing else in it is ever looked up."""

import sys

import pytest
import yaml

from attnlab.config import CONF
from attnlab.errors import Refused
from attnlab.store import fingerprint
from attnlab.store.guards import trust

MASK = {"_target_": "attnlab.attention.masks.window.window", "width": 3}
KERNEL = {"_target_": "hydra.utils.get_method", "path": "attnlab.attention.kernels.sdpa.sdpa"}


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """A user who has trusted nothing yet."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "config"


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A module of a user's: something of its own, and other people's things under its name."""
    (tmp_path / "mine.py").write_text("import subprocess\nfrom os import system\n\ndef banded(): ...\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "mine"
    sys.modules.pop("mine", None)


def ask(node, tmp_path, own=()):
    trust.refuse_strange({"model": {"attention": {"part": node}}}, tmp_path / "spec.json", own)


def test_all_that_ships_may_be_named(tmp_path):
    contents = [yaml.safe_load(path.read_text()) for path in sorted(CONF.rglob("*.yaml"))]
    names = {name for name in fingerprint.targets(contents) if name not in trust.GETTERS}
    assert len(names) > 50
    for name in names:
        ask({"_target_": name}, tmp_path)


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
        "attnlab.model.build.make",
        "attnlab.sweep.plan.trainer.trainer",
        "attnlab.store.files.write_json",
        "attnlab.testing.verify",
        "attnlab.data.text.os.system",
        "attnlab.data.text.write",
        "attnlab.data.text.code_corpus",
        "attnlab.data.module.torch.load",
        "attnlab.attention.layer.nn.Module.register_forward_hook",
        "attnlab.model.transformer.Transformer.__init__",
        "attnlab.training.loggers.wandb.Wandb.open",
        "pytorch_lightning.callbacks.model_checkpoint.os.system",
        "pytorch_lightning.loggers.csv_logs.os.system",
        "pytorch_lightning.Trainer.fit",
        "eval",
        "",
    ],
)
def test_what_could_do_harm_is_refused_however_it_is_named(name, tmp_path):
    for node in (
        {"_target_": name},
        {"_target_": "hydra.utils.get_method", "path": name},
        {"_target_": "hydra.utils.get_object", "path": name},
        {"_target_": MASK["_target_"], "width": [{"_target_": name}]},
    ):
        with pytest.raises(Refused) as refused:
            ask(node, tmp_path)
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
def test_nothing_is_named_in_a_way_that_only_building_would_tell(node, tmp_path):
    with pytest.raises(Refused):
        ask(node, tmp_path)


@pytest.mark.parametrize(
    "patch",
    [{"kernel": {"path": "os.system"}}, {"window": {"_target_": "os.system"}}, {"part": "${oc.env:HOME}"}],
)
def test_a_patch_of_a_layer_is_looked_at_as_it_will_be_merged(patch, tmp_path):
    config = {"model": {"attention": {"kernel": KERNEL, "window": MASK}, "layers": [{}, patch]}}
    with pytest.raises(Refused):
        trust.refuse_strange(config, tmp_path / "spec.json")
    config["model"]["layers"] = [{"kernel": {"path": "attnlab.attention.kernels.eager.eager"}}]
    trust.refuse_strange(config, tmp_path / "spec.json")


def test_a_module_is_not_even_imported_before_it_is_trusted(tmp_path, mine):
    node = {"_target_": "mine.banded"}
    with pytest.raises(Refused, match=r"attention.part._target_ = mine.banded: .* say --trust mine once$"):
        ask(node, tmp_path)
    assert "mine" not in sys.modules
    trust.trust("mine")
    ask(node, tmp_path)
    assert "mine" in sys.modules


def test_what_the_command_composes_itself_needs_no_trust(tmp_path, mine):
    ask({"_target_": "mine.banded"}, tmp_path, own={"mine.other"})
    with pytest.raises(Refused):
        ask({"_target_": "mine.banded"}, tmp_path, own={"other.banded"})


@pytest.mark.parametrize("name", ["mine.subprocess.run", "mine.system"])
def test_a_trusted_module_vouches_for_its_own_things_alone(name, tmp_path, mine):
    trust.trust("mine")
    with pytest.raises(Refused, match=r"which is (subprocess.run|posix.system)"):
        ask({"_target_": name}, tmp_path)


def test_trust_is_remembered_once_beside_the_users_other_settings(home):
    for module in ("mine", "yours.parts", "mine"):
        assert trust.trust(module) == home / "attnlab" / "trusted"
    assert trust.trusted() == ("mine", "yours.parts")


@pytest.mark.parametrize(
    "module", ["os", "builtins", "attnlab", "attnlab.cli", "hydra.utils", "", "a b", "-x"]
)
def test_what_can_do_anything_is_not_trusted_as_a_whole(module):
    with pytest.raises(Refused, match="--trust"):
        trust.trust(module)
    assert trust.trusted() == ()
