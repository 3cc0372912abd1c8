"""Configs that are composed with what was read before are the ones that Hydra itself composes."""

from pathlib import Path

import pytest
from hydra import initialize_config_dir
from hydra.core.config_loader import ConfigLoader
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import Container, DictConfig, ListConfig, OmegaConf

from attnlab.config import CONF, register_resolvers
from attnlab.errors import Refused
from attnlab.sweep.plan.composer import Composer, Loader

EXPERIMENTS = sorted(path.stem for path in (CONF / "experiment").glob("*.yaml"))


@pytest.fixture
def hydras():
    register_resolvers()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        yield GlobalHydra.instance().config_loader()


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


def composed(loader: ConfigLoader, master: DictConfig, lines: list[list[str]]) -> list[object]:
    """What composing these lines one after the other, and resolving each, gives."""
    composer, found = Composer(loader, master), []
    for line in lines:
        config = composer.compose(line)
        found.append((whole(config), list(composer.resolve(config).items())))
    return found


def arms(name: str, loader: ConfigLoader) -> list[list[str]]:
    base = OmegaConf.to_container(loader.load_configuration("config", [f"+experiment={name}"], RunMode.RUN))
    by_size = (base.get("size_overrides") or {}).get("M") or []
    return [[*by_size, f"+experiment={name}", *own] for own in base["arm_overrides"].values()]


SHIPPED = [pytest.param(name, marks=[] if name == "gqa_vs_mha" else pytest.mark.rare) for name in EXPERIMENTS]


@pytest.mark.parametrize("name", SHIPPED)
def test_every_arm_is_composed_as_hydra_would(name, hydras):
    loader, line = Loader(hydras.config_search_path), [f"+experiment={name}"]
    ours, theirs = (one.load_configuration("config", line, RunMode.MULTIRUN) for one in (loader, hydras))
    assert whole(ours) == whole(theirs)
    first, *_, last = arms(name, hydras)  # Hydra itself takes half a second each
    lines = [first, last, first, [*first, "replica=99"]]
    again = composed(loader, ours, lines)
    assert again == composed(hydras, theirs, lines)
    assert len({str(one) for one in again}) == len(set(map(tuple, lines)))


def test_changing_a_config_changes_no_later_one(hydras):
    loader = Loader(hydras.config_search_path)
    first = loader.load_configuration("config", ["heads=gqa"], RunMode.RUN)
    before = OmegaConf.to_yaml(first)
    OmegaConf.update(first, "model.dim", 7)
    first.hydra.job.name = "changed"
    assert OmegaConf.to_yaml(loader.load_configuration("config", ["heads=gqa"], RunMode.RUN)) == before
    sweep = loader.load_configuration("config", ["heads=gqa"], RunMode.MULTIRUN)
    before = OmegaConf.to_yaml(sweep)
    OmegaConf.update(sweep, "model.dim", 7)
    assert OmegaConf.to_yaml(loader.load_configuration("config", ["heads=gqa"], RunMode.MULTIRUN)) == before


@pytest.mark.parametrize(
    "line", [["heads=none_such"], ["no_such_key=1"], ["model.dim=[1,"], ["hydra.verbose=a,b"], ["+heads=mha"]]
)
def test_refusals_are_hydras_and_come_each_time(line, hydras):
    loader = Loader(hydras.config_search_path)

    def refusal(of: ConfigLoader, **more: bool) -> str:
        with pytest.raises(HydraException) as raised:
            of.load_configuration("config", line, RunMode.MULTIRUN, **more)
        return str(raised.value)

    if line[0].startswith("hydra."):  # what Hydra asks first, to find its mode, does not look at that
        loader.load_configuration("config", line, RunMode.MULTIRUN, validate_sweep_overrides=False)
    assert refusal(loader) == refusal(hydras)
    assert refusal(loader) == refusal(hydras)


def test_a_search_path_on_the_command_line_is_looked_at(hydras, tmp_path: Path):
    (tmp_path / "heads").mkdir()
    (tmp_path / "heads" / "mine.yaml").write_text("# @package _global_\nmodel: {dim: 11}\n")
    loader = Loader(hydras.config_search_path)
    line = [f"hydra.searchpath=[file://{tmp_path}]", "heads=mine"]
    for _ in range(2):
        assert loader.load_configuration("config", line, RunMode.RUN).model.dim == 11
        with pytest.raises(HydraException):
            loader.load_configuration("config", ["heads=mine"], RunMode.RUN)


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
def test_a_choice_of_attention_is_refused_where_no_layer_has_any(lines, idle, hydras):
    loader = Loader(hydras.config_search_path)
    composer = Composer(loader, loader.load_configuration("config", lines, RunMode.MULTIRUN))
    config = composer.compose(lines)
    if idle is None:
        composer.refuse_idle(config, lines)
        return
    with pytest.raises(Refused, match=f"^{idle} is about attention, and {lines[0]} has none: leave it out"):
        composer.refuse_idle(config, lines)
