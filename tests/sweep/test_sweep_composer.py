"""Our config source hands out what Hydra's own reads, and changed leaves are those of an override."""

from pathlib import Path

import pytest
from hydra import initialize_config_dir
from hydra.core.config_loader import ConfigLoader
from hydra.core.global_hydra import GlobalHydra
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from hydra.plugins.config_source import ConfigSource
from hydra.types import RunMode
from omegaconf import Container, DictConfig, ListConfig, OmegaConf
from toys import shipped

from attnlab.config import CONF, register_resolvers
from attnlab.errors import Refused
from attnlab.sweep.plan import config_files
from attnlab.sweep.plan.composer import Composed, Composer, resolve

EXPERIMENTS = sorted(path.stem for path in (CONF / "experiment").glob("*.yaml"))
CONFIGS = sorted(str(path.relative_to(CONF).with_suffix("")) for path in CONF.rglob("*.yaml"))


def whole(node: Container) -> object:
    """A config with all that OmegaConf keeps beside its values: types, flags, what may be missing."""
    about = node._metadata
    kept = (type(node).__name__, str(about.ref_type), about.optional, str(about.object_type), about.flags)
    if isinstance(node, DictConfig | ListConfig) and not (
        node._is_none() or node._is_missing() or node._is_interpolation()
    ):
        items = node._content.items() if isinstance(node, DictConfig) else enumerate(node._content)
        return kept, [(key, whole(child)) for key, child in items]
    return kept, node._value()


def source(scheme: str) -> ConfigSource:
    config_files.register()
    [found] = [one for one in Plugins.instance().discover(ConfigSource) if one.scheme() == scheme]
    return found("main", f"{scheme}://{CONF}")


def test_every_config_is_read_as_hydra_reads_it_however_often():
    ours, hydras = source(config_files.SCHEME), source("file")
    assert len(CONFIGS) > 150
    for name in CONFIGS:
        first, theirs = (one.load_config(name) for one in (ours, hydras))
        expected = whole(theirs.config)
        assert (first.header, whole(first.config)) == (theirs.header, expected), name
        for key in list(first.config):
            del first.config[key]  # Hydra changes what it is given
        assert whole(ours.load_config(name).config) == expected, name


@pytest.mark.parametrize("path", ["", "heads", "data", "data/tokenizer", "none_such", "heads/mha"])
def test_groups_and_configs_are_those_that_hydra_sees(path):
    ours, hydras = source(config_files.SCHEME), source("file")
    for asked in ("is_group", "is_config", "exists"):
        assert getattr(ours, asked)(path) == getattr(hydras, asked)(path), asked
    if ours.is_group(path):
        assert ours.list(path, None) == hydras.list(path, None)


def composed_by(loader: ConfigLoader, lines: list[str]) -> Composer:
    return Composer(loader, loader.load_configuration("config", lines, RunMode.MULTIRUN))


# In these the seed is more than copied: another key is worked out of it, or a whole group with it is referred to.
SEEDS_MADE_OF_SEEDS = ("aa_null", "gqa_uptraining", "head_pruning", "qk_variance")
SHIPPED = [pytest.param(name, marks=[] if name == "gqa_vs_mha" else pytest.mark.rare) for name in EXPERIMENTS]


@pytest.mark.parametrize("name", SHIPPED)
def test_changed_leaves_are_those_of_a_last_override(name):
    line = [f"+experiment={name}"]
    composer = composed_by(shipped(), line)
    own = list(composer.compose(line).written["arm_overrides"].values())[-1]
    composed = composer.compose([*line, *own])
    handed_on = composed._find_followers("seed") is not None
    assert handed_on != (name in SEEDS_MADE_OF_SEEDS)
    for changes in ({"seed": 4}, {"seed": 9, "optim.lr": 0.07}, {"seed": 4, "trainer.max_steps": 7}):
        last = [f"{key}={value}" for key, value in changes.items()]
        config = composer.loader.load_sweep_config(composer.master, [*line, *own, *last])
        assert composed.values(changes) == resolve(config), changes
    kept = Composed(composed.written, composed.choices)  # as it comes out of a cache
    assert kept.values({"seed": 11, "optim.lr": 0.07}) == composed.values({"seed": 11, "optim.lr": 0.07})


@pytest.mark.parametrize(
    "written",
    [
        {"twice": "${times:2,${seed}}"},
        {"alias": "${seed}", "twice": "${times:2,${alias}}"},
        {"data": {"seed": "${seed}"}, "all": "${data}"},
        {"data": {"seed": "${seed}", "same": "${.seed}"}},
        {"which": "seed", "found": "${${which}}"},
        {"table": {"3": "a", "4": "b"}, "found": "${oc.select:table.${seed}}"},
    ],
)
def test_a_value_that_is_made_of_the_seed_is_made_of_each_seed(written):
    register_resolvers()
    composed = Composed({"seed": 0, **written}, {})
    assert composed._find_followers("seed") is None
    for seed in (3, 4):
        config = OmegaConf.create({"seed": seed, **written})
        assert composed.values({"seed": seed}) == resolve(config)


@pytest.mark.parametrize("changes", [{"lr": 5, "seed": 3}, {"seed": 3, "lr": 5}, {"b": 7, "seed": 3}])
def test_a_changed_leaf_follows_no_other_that_is_changed_too(changes):
    written = {"seed": 0, "lr": "${seed}", "b": "${lr}"}
    config = OmegaConf.create(written)
    for key, value in changes.items():
        OmegaConf.update(config, key, value)
    assert Composed(written, {}).values(changes) == resolve(config)


def test_an_arm_is_composed_once(monkeypatch):
    composed = []
    composer = composed_by(shipped(), ["+experiment=gqa_vs_mha"])
    load = composer.loader.load_sweep_config

    class Counting:
        def __getattr__(self, name):
            return getattr(shipped(), name)

        def load_sweep_config(self, master, overrides):
            composed.append(overrides)
            return load(master, overrides)

    composer.loader = Counting()
    for _ in range(2):
        for own in (["heads=mha"], ["heads=gqa"]):
            composer.compose(["+experiment=gqa_vs_mha", *own])
    assert len(composed) == 2
    assert composer.compose_point(["+experiment=gqa_vs_mha"]).choices["experiment"] == "gqa_vs_mha"
    assert len(composed) == 2, "the command's own config is composed by Hydra"


def test_changing_a_config_changes_no_later_one():
    loader = shipped()
    first = loader.load_configuration("config", ["heads=gqa"], RunMode.RUN)
    before = OmegaConf.to_yaml(first)
    OmegaConf.update(first, "model.dim", 7)
    first.hydra.job.name = "changed"
    assert OmegaConf.to_yaml(loader.load_configuration("config", ["heads=gqa"], RunMode.RUN)) == before


def test_a_search_path_on_the_command_line_is_looked_at(tmp_path: Path):
    (tmp_path / "heads").mkdir()
    (tmp_path / "heads" / "mine.yaml").write_text("# @package _global_\nmodel: {dim: 11}\n")
    loader = shipped()
    line = [f"hydra.searchpath=[file://{tmp_path}]", "heads=mine"]
    for _ in range(2):
        assert loader.load_configuration("config", line, RunMode.RUN).model.dim == 11
        with pytest.raises(HydraException):
            loader.load_configuration("config", ["heads=mine"], RunMode.RUN)


def test_an_edited_file_is_read_again(tmp_path: Path):
    (tmp_path / "config.yaml").write_text("a: 1\n")
    config_files.register()
    with initialize_config_dir(str(tmp_path), version_base="1.3"):
        loader = GlobalHydra.instance().config_loader()
    assert loader.load_configuration("config", [], RunMode.RUN).a == 1
    (tmp_path / "config.yaml").write_text("a: 22\n")
    assert loader.load_configuration("config", [], RunMode.RUN).a == 22


@pytest.mark.parametrize(
    ("lines", "idle"),
    [
        (["model=lstm", "heads=gqa"], "heads=gqa"),
        (["model=gated_delta", "position=none", "mask=window"], "mask=window"),
        (["model=linear", "score=softcap", "model.n_heads=2"], "score=softcap"),
        (["model=lstm", "position=learned"], None),  # learned positions are the model's own
        (["model=lstm", "position=none", "decode=none", "data=recall"], None),
        (["model=llama", "heads=gqa", "layers=delta_one_in_four"], None),  # some layers attend
    ],
)
def test_a_choice_of_attention_is_refused_where_no_layer_has_any(lines, idle):
    composer = composed_by(shipped(), lines)
    composed = composer.compose(lines)
    if idle is None:
        composer.refuse_idle(composed, lines)
        return
    with pytest.raises(Refused, match=f"^{idle} is about attention, and {lines[0]} has none: leave it out"):
        composer.refuse_idle(composed, lines)
