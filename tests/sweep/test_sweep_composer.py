"""Composition: the cached config source equals Hydra's own; changed leaves equal those of an override."""

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
from toys import shipped_loader

from attnlab.config import CONF, register_resolvers
from attnlab.errors import InvalidConfig
from attnlab.sweep.plan import config_files
from attnlab.sweep.plan.composer import ComposedConfig, Composer, resolve_config

EXPERIMENTS = sorted(path.stem for path in (CONF / "experiment").glob("*.yaml"))
CONFIGS = sorted(str(path.relative_to(CONF).with_suffix("")) for path in CONF.rglob("*.yaml"))


def dump_node(node: Container) -> object:
    """Return a config with all that OmegaConf stores beside its values: types, flags, missing markers."""
    metadata = node._metadata
    summary = (
        type(node).__name__,
        str(metadata.ref_type),
        metadata.optional,
        str(metadata.object_type),
        metadata.flags,
    )
    if isinstance(node, DictConfig | ListConfig) and not (
        node._is_none() or node._is_missing() or node._is_interpolation()
    ):
        items = node._content.items() if isinstance(node, DictConfig) else enumerate(node._content)
        return summary, [(key, dump_node(child)) for key, child in items]
    return summary, node._value()


def make_source(scheme: str) -> ConfigSource:
    config_files.register_config_source()
    [source_class] = [cls for cls in Plugins.instance().discover(ConfigSource) if cls.scheme() == scheme]
    return source_class("main", f"{scheme}://{CONF}")


def test_cached_source_equals_hydras_file_source():
    cached, reference = make_source(config_files.SCHEME), make_source("file")
    assert len(CONFIGS) > 150
    for name in CONFIGS:
        first, second = (source.load_config(name) for source in (cached, reference))
        expected = dump_node(second.config)
        assert (first.header, dump_node(first.config)) == (second.header, expected), name
        for key in list(first.config):
            del first.config[key]  # Hydra changes loaded configs in place
        assert dump_node(cached.load_config(name).config) == expected, name


@pytest.mark.parametrize("path", ["", "heads", "data", "data/tokenizer", "none_such", "heads/mha"])
def test_cached_source_lists_same_groups_and_configs_as_hydra(path):
    cached, reference = make_source(config_files.SCHEME), make_source("file")
    for method in ("is_group", "is_config", "exists"):
        assert getattr(cached, method)(path) == getattr(reference, method)(path), method
    if cached.is_group(path):
        assert cached.list(path, None) == reference.list(path, None)


def make_composer(loader: ConfigLoader, lines: list[str]) -> Composer:
    return Composer(loader, loader.load_configuration("config", lines, RunMode.MULTIRUN))


# In these, more than a copy depends on the seed: a derived key, or a reference to a group that contains it.
DERIVED_SEED_EXPERIMENTS = ("aa_null", "gqa_uptraining", "head_pruning", "qk_variance")
EXPERIMENT_PARAMETERS = [
    pytest.param(name, marks=[] if name == "gqa_vs_mha" else pytest.mark.rare) for name in EXPERIMENTS
]


@pytest.mark.parametrize("name", EXPERIMENT_PARAMETERS)
def test_changed_leaves_equal_trailing_override(name):
    line = [f"+experiment={name}"]
    composer = make_composer(shipped_loader(), line)
    arm_lines = list(composer.compose(line).raw_config["arm_overrides"].values())[-1]
    composed = composer.compose([*line, *arm_lines])
    is_copied_only = composed._find_dependent_leaves("seed") is not None
    assert is_copied_only != (name in DERIVED_SEED_EXPERIMENTS)
    for changes in ({"seed": 4}, {"seed": 9, "optim.lr": 0.07}, {"seed": 4, "trainer.max_steps": 7}):
        trailing = [f"{key}={value}" for key, value in changes.items()]
        config = composer.loader.load_sweep_config(composer.master, [*line, *arm_lines, *trailing])
        assert composed.resolve_values(changes) == resolve_config(config), changes
    restored = ComposedConfig(composed.raw_config, composed.choices)  # as restored from the arm cache
    assert restored.resolve_values({"seed": 11, "optim.lr": 0.07}) == composed.resolve_values(
        {"seed": 11, "optim.lr": 0.07}
    )


@pytest.mark.parametrize(
    "raw_config",
    [
        {"twice": "${times:2,${seed}}"},
        {"alias": "${seed}", "twice": "${times:2,${alias}}"},
        {"data": {"seed": "${seed}"}, "all": "${data}"},
        {"data": {"seed": "${seed}", "same": "${.seed}"}},
        {"which": "seed", "found": "${${which}}"},
        {"table": {"3": "a", "4": "b"}, "found": "${oc.select:table.${seed}}"},
    ],
)
def test_derived_values_follow_each_seed(raw_config):
    register_resolvers()
    composed = ComposedConfig({"seed": 0, **raw_config}, {})
    assert composed._find_dependent_leaves("seed") is None
    for seed in (3, 4):
        config = OmegaConf.create({"seed": seed, **raw_config})
        assert composed.resolve_values({"seed": seed}) == resolve_config(config)


@pytest.mark.parametrize("changes", [{"lr": 5, "seed": 3}, {"seed": 3, "lr": 5}, {"b": 7, "seed": 3}])
def test_explicit_change_overrides_interpolated_change(changes):
    raw_config = {"seed": 0, "lr": "${seed}", "b": "${lr}"}
    config = OmegaConf.create(raw_config)
    for key, value in changes.items():
        OmegaConf.update(config, key, value)
    assert ComposedConfig(raw_config, {}).resolve_values(changes) == resolve_config(config)


def test_each_override_list_is_composed_once(monkeypatch):
    compositions = []
    composer = make_composer(shipped_loader(), ["+experiment=gqa_vs_mha"])
    load = composer.loader.load_sweep_config

    class CountingLoader:
        def __getattr__(self, name):
            return getattr(shipped_loader(), name)

        def load_sweep_config(self, master, overrides):
            compositions.append(overrides)
            return load(master, overrides)

    composer.loader = CountingLoader()
    for _ in range(2):
        for arm_lines in (["heads=mha"], ["heads=gqa"]):
            composer.compose(["+experiment=gqa_vs_mha", *arm_lines])
    assert len(compositions) == 2
    assert composer.compose_point(["+experiment=gqa_vs_mha"]).choices["experiment"] == "gqa_vs_mha"
    assert len(compositions) == 2, "the command's own config is composed by Hydra"


def test_changing_config_leaves_later_compositions_unchanged():
    loader = shipped_loader()
    first = loader.load_configuration("config", ["heads=gqa"], RunMode.RUN)
    before = OmegaConf.to_yaml(first)
    OmegaConf.update(first, "model.dim", 7)
    first.hydra.job.name = "changed"
    assert OmegaConf.to_yaml(loader.load_configuration("config", ["heads=gqa"], RunMode.RUN)) == before


def test_searchpath_override_adds_folder(tmp_path: Path):
    (tmp_path / "heads").mkdir()
    (tmp_path / "heads" / "mine.yaml").write_text("# @package _global_\nmodel: {dim: 11}\n")
    loader = shipped_loader()
    line = [f"hydra.searchpath=[file://{tmp_path}]", "heads=mine"]
    for _ in range(2):
        assert loader.load_configuration("config", line, RunMode.RUN).model.dim == 11
        with pytest.raises(HydraException):
            loader.load_configuration("config", ["heads=mine"], RunMode.RUN)


def test_edited_config_file_is_reloaded(tmp_path: Path):
    (tmp_path / "config.yaml").write_text("a: 1\n")
    config_files.register_config_source()
    with initialize_config_dir(str(tmp_path), version_base="1.3"):
        loader = GlobalHydra.instance().config_loader()
    assert loader.load_configuration("config", [], RunMode.RUN).a == 1
    (tmp_path / "config.yaml").write_text("a: 22\n")
    assert loader.load_configuration("config", [], RunMode.RUN).a == 22


@pytest.mark.parametrize(
    ("lines", "unused"),
    [
        (["model=lstm", "heads=gqa"], "heads=gqa"),
        (["model=gated_delta", "position=none", "mask=window"], "mask=window"),
        (["model=linear", "score=softcap", "model.n_heads=2"], "score=softcap"),
        (["model=lstm", "position=learned"], None),  # learned positions are the model's own
        (["model=lstm", "position=none", "decode=none", "data=recall"], None),
        (["model=llama", "heads=gqa", "layers=delta_one_in_four"], None),  # some layers attend
    ],
)
def test_unused_attention_override_fails(lines, unused):
    composer = make_composer(shipped_loader(), lines)
    composed = composer.compose(lines)
    if unused is None:
        composer.reject_unused_attention_overrides(composed, lines)
        return
    with pytest.raises(
        InvalidConfig, match=f"^{unused} applies to attention, but {lines[0]} has none: leave it out"
    ):
        composer.reject_unused_attention_overrides(composed, lines)


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ("+preset=gpt_oss heads=mha", "model.attention.heads.n_kv_heads"),
        ("+preset=gemma3 position=none", "model.attention.rotary.base"),
        ("+preset=gemma3 layers=uniform", "model.window"),
        ("+preset=kimi_linear layers=uniform", "model.mixer._target_"),
        ("+preset=kimi_linear model=gated_delta", "model.mixer._target_"),
        ("+preset=qwen3_next epilogue=none", "model.attention.epilogue.head_dim"),
        ("+preset=gemma3 heads=mha model=llama block=sandwich score=scaled size=S mask=window", None),
        ("+preset=kimi_linear position=rope decode=static", None),
        ("+preset=gpt_oss kernel=flex", None),
        ("heads=mha position=none layers=uniform", None),
    ],
)
def test_option_that_a_preset_would_hide_fails(line, key):
    lines = line.split()
    composer = make_composer(shipped_loader(), lines)
    composed = composer.compose(lines)
    if key is None:
        composer.reject_options_hidden_by_preset(composed, lines)
        return
    with pytest.raises(InvalidConfig, match=rf"^{lines[1]} does not apply in full: .* sets {key}; set"):
        composer.reject_options_hidden_by_preset(composed, lines)
