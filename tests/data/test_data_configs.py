"""The configs of the data group build tasks and data modules."""

from pathlib import Path

import pytest
import torch
import yaml
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import InstantiationException
from hydra.utils import instantiate

from attnlab.config import CONF, register_resolvers


@pytest.fixture
def build_data_module(tmp_path: Path):
    """Compose the data group alone, under a top level with the values that it refers to, and build it."""
    (tmp_path / "top.yaml").write_text(
        "defaults: [_self_, {data: pydocs}, {size: S}]\nseed: 7\n"
        f"paths: {{cache: {tmp_path / 'cache'}}}\n"
        f"hydra: {{searchpath: ['file://{CONF}']}}\n"
    )
    (tmp_path / "size").mkdir()
    (tmp_path / "size" / "S.yaml").write_text("# @package _global_\ndata: {length: 12, batch_size: 3}\n")

    register_resolvers()

    def build(*overrides: str):
        with initialize_config_dir(str(tmp_path), version_base=None):
            config = compose("top", overrides=list(overrides))
        return instantiate(config.data)

    yield build
    GlobalHydra.instance().clear()


@pytest.mark.parametrize("tokenizer", ["char", "byte", "bpe"])
def test_pydocs_config(build_data_module, tokenizer):
    module = build_data_module(f"data/tokenizer={tokenizer}", "data.val_windows=9")
    assert (module.task.name, module.task.unit, module.seed) == ("pydocs", tokenizer, 7)
    assert (module.task.length, module.batch_size, module.task.val_windows) == (12, 3, 9)


def test_text_config(build_data_module, novel_path):
    module = build_data_module("data=text", f"data.path={novel_path}", "data.length=5", "data.batch_size=4")
    assert (module.task.name, module.task.length, module.batch_size) == ("novel", 5, 4)


def test_hub_config(build_data_module, tmp_path, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "datasets")
    (tmp_path / "rows").mkdir()
    rows = "\n".join(str(7**n) for n in range(40))
    (tmp_path / "rows" / "train.txt").write_text(rows)
    module = build_data_module("data=hub", f"data.name={tmp_path / 'rows'}", "data/tokenizer=byte")
    assert module.task.train_tokens + module.task.val_tokens == len(rows)


def test_names_config(build_data_module, tmp_path):
    (tmp_path / "list").write_text("ann\nbob\ncyd\ndee\nelo\nfay\n")
    assert build_data_module("data=names", f"data.path={tmp_path / 'list'}").task.length == 4


def test_an_unknown_key_is_rejected(build_data_module):
    with pytest.raises(InstantiationException, match="val_window'"):
        build_data_module("+data.val_window=3")


SYNTHETIC_TASKS = [
    "recall",
    "induction",
    "copy",
    "reverse",
    "needle",
    "forgetting",
    "compositional",
    "noisy_recall",
    "fuzzy_recall",
    "selective_copying",
    "compression",
    "memorization",
    "depo",
    "mano",
    "parity",
    "modular_addition",
    "s3",
    "s5",
    "flip_flop",
    "dyck",
    "needle_keys",
    "variable_binding",
]


LENGTHS = sorted({yaml.safe_load(path.read_text())["data"]["length"] for path in CONF.glob("size/*.yaml")})


@pytest.mark.sampled(20)
@pytest.mark.parametrize("name", [*SYNTHETIC_TASKS, "depo_next", "mano_seven"])
@pytest.mark.parametrize("length", LENGTHS)
def test_synthetic_tasks_fit_the_lengths_of_the_sizes(build_data_module, name, length):
    task = build_data_module(f"data={name}", f"data.length={length}", "data.val_windows=2").task
    assert task.length == length
    assert task.val_batches(2)[0]["tokens"].shape == (2, length)


@pytest.mark.parametrize("name", SYNTHETIC_TASKS[SYNTHETIC_TASKS.index("parity") :])
@pytest.mark.parametrize("length", [16, 64])
def test_validation_has_every_condition(build_data_module, name, length):
    module = build_data_module(f"data={name}", f"data.length={length}")
    seen = torch.cat([batch["condition"][batch["targets"] >= 0] for batch in module.val_batches])
    assert seen.unique().tolist() == list(range(len(module.task.conditions)))


@pytest.mark.parametrize(
    ("name", "conditions"), [("depo_next", ("hops/1",)), ("mano_seven", ("operations/1",))]
)
def test_easy_variants_of_depo_and_mano_have_one_condition(build_data_module, name, conditions):
    task = build_data_module(f"data={name}", "data.length=32").task
    assert (task.name, task.conditions) == (name.split("_")[0], conditions)
