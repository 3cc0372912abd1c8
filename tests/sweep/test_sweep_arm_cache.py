"""Who plans again what was planned composes and checks nothing, until something changes."""

import os
import shutil

import pytest
import toys
from hydra.types import RunMode

from attnlab.sweep.plan import arm_cache
from attnlab.sweep.plan.composer import Composer
from attnlab.sweep.plan.plan import plan


@pytest.fixture
def again(toy):
    """`again(...)`: the plans of a line over the toy's files in `conf`, and what was composed and checked."""
    shutil.copytree(toys.TOY / "conf", toy / "conf")

    def call(*line, module="toy_trainer", lookup=lambda _id: None):
        loader = toys.loader_of(toy / "conf")
        composed, checked = [], []

        class Counting:
            def __getattr__(self, name):
                return getattr(loader, name)

            def load_sweep_config(self, master, overrides):
                composed.append(overrides)
                return loader.load_sweep_config(master, overrides)

        class Checks(toys.Asked):
            def check(self, config):
                checked.append(config)
                return toys.Asked.check(config)

        words = ["+experiment=heads", *line]
        composer = Composer(Counting(), loader.load_configuration("config", words, RunMode.MULTIRUN))
        plans = plan(words, composer, Checks(), lookup, module=module)
        made = [(one.title, one.runs, one.grid, one.recipes, one.declared) for one in plans]
        return made, len(composed), len(checked)

    return call


def test_a_plan_that_was_made_before_is_the_same_and_composes_nothing(again):
    line = ("tune={lr:[0.8,0.2,0.4],seeds:[7,8,9]}", "++model.said=said")
    first, composed, checked = again(*line)
    assert composed == 4, "an arm each, and the experiment as its file has it"
    assert checked > 0
    for _ in range(2):
        assert again(*line)[:2] == (first, 1)
    assert again(*line, "seed=18,19")[1] > 1, "other seeds are other arms: theirs are checked with the first"


def test_without_a_trainer_nothing_is_kept(again, toy):
    for _ in range(2):
        assert again(module=None)[1] == 3
    assert not (toy / ".cache" / "arms").exists()


def edit(path):
    path.write_text(path.read_text() + "\n# edited\n")


@pytest.mark.parametrize(
    "change",
    [
        lambda toy, _: edit(toy / "conf" / "heads" / "two.yaml"),
        lambda toy, _: (toy / "conf" / "heads" / "three.yaml").write_text("# @package _global_\nmodel: {}\n"),
        lambda toy, _: edit(toy / "said"),
        lambda _, patch: patch.setenv("A_VARIABLE", "1"),
        lambda _, patch: patch.setattr(arm_cache.kept, "_code", lambda: "other code"),
        lambda _, patch: patch.setattr(arm_cache.kept, "_packages", lambda: ["other packages"]),
        lambda _, patch: patch.setattr(arm_cache.kept, "_machine", lambda: ["another machine"]),
        lambda toy, _: [path.write_text("{") for path in (toy / ".cache" / "arms").iterdir()],
        lambda toy, _: os.symlink(toy / ".cache", toy / "conf" / "link"),
    ],
    ids=["yaml", "more", "file", "environment", "code", "packages", "machine", "broken", "link"],
)
def test_what_an_arm_could_depend_on_is_looked_at_each_time(again, toy, monkeypatch, change):
    (toy / "said").write_text("as it was")
    line = ("++model.said=said",)
    before, *_ = again(*line)
    assert again(*line)[2] == 0
    change(toy, monkeypatch)
    after, composed, checked = again(*line)
    assert composed > 1
    assert checked > 0
    assert after == before


def test_what_a_check_would_refuse_today_is_not_taken_from_the_cache(again, toy):
    (toy / "said").write_text("as it was")
    again("+data.path=said")
    assert again("+data.path=said")[2] == 0
    (toy / "said").unlink()
    os.mkfifo(toy / "said")
    assert again("+data.path=said")[2] > 0


@pytest.mark.parametrize("text", ["${now:%Y}", "${hydra:job.name}", "${hydra.job.name}"])
def test_what_may_be_another_tomorrow_is_not_kept(again, text):
    for _ in range(2):
        assert again(f"++model.said='{text}'")[2] > 0
