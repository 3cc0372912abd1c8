"""Arm cache: planning a command again composes and checks nothing until an input changes."""

import os
import shutil

import pytest
import toys
from hydra.types import RunMode

from attnlab.sweep.plan import arm_cache
from attnlab.sweep.plan.composer import Composer
from attnlab.sweep.plan.plan import plan_command


@pytest.fixture
def replan(toy):
    """`replan(...)`: plans of a line over a copy of the toy's conf, and counts of compositions and checks."""
    shutil.copytree(toys.TOY / "conf", toy / "conf")

    def call(*line, module="toy_trainer", lookup=lambda _id: None):
        loader = toys.make_loader(toy / "conf")
        compositions, checks = [], []

        class CountingLoader:
            def __getattr__(self, name):
                return getattr(loader, name)

            def load_sweep_config(self, master, overrides):
                compositions.append(overrides)
                return loader.load_sweep_config(master, overrides)

        class CountingChecker(toys.InProcessChecker):
            def check(self, config):
                checks.append(config)
                return toys.InProcessChecker.check(config)

        words = ["+experiment=heads", *line]
        composer = Composer(CountingLoader(), loader.load_configuration("config", words, RunMode.MULTIRUN))
        plans = plan_command(words, composer, CountingChecker(), lookup, module=module)
        summaries = [
            (plan.title, plan.runs, plan.tuning_runs, plan.config_digests, plan.declared) for plan in plans
        ]
        return summaries, len(compositions), len(checks)

    return call


def test_repeated_plan_is_equal_and_composes_nothing(replan):
    line = ("tune={lr:[0.8,0.2,0.4],seeds:[7,8,9]}", "++model.said=said")
    first, composed, checked = replan(*line)
    assert composed == 4, "one per arm, and the experiment as its file has it"
    assert checked > 0
    for _ in range(2):
        assert replan(*line)[:2] == (first, 1)
    assert replan(*line, "seed=18,19")[1] > 1, (
        "other seeds are other arms: arms are checked at the first seed"
    )


def test_nothing_is_cached_without_trainer(replan, toy):
    for _ in range(2):
        assert replan(module=None)[1] == 3
    assert not (toy / ".cache" / "arms").exists()


def append_comment(path):
    path.write_text(path.read_text() + "\n# edited\n")


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "change",
    [
        lambda toy, _: append_comment(toy / "conf" / "heads" / "two.yaml"),
        lambda toy, _: (toy / "conf" / "heads" / "three.yaml").write_text("# @package _global_\nmodel: {}\n"),
        lambda toy, _: append_comment(toy / "said"),
        lambda _, patch: patch.setenv("A_VARIABLE", "1"),
        lambda _, patch: patch.setattr(arm_cache.check_cache, "_digest_package_code", lambda: "other code"),
        lambda _, patch: patch.setattr(
            arm_cache.check_cache, "_list_installed_packages", lambda: ["other packages"]
        ),
        lambda _, patch: patch.setattr(
            arm_cache.check_cache, "_describe_machine", lambda: ["another machine"]
        ),
        lambda toy, _: [path.write_text("{") for path in (toy / ".cache" / "arms").iterdir()],
        lambda toy, _: os.symlink(toy / ".cache", toy / "conf" / "link"),
    ],
    ids=["yaml", "more", "file", "environment", "code", "packages", "machine", "broken", "link"],
)
def test_changed_input_invalidates_cached_arms(replan, toy, monkeypatch, change):
    (toy / "said").write_text("as it was")
    line = ("++model.said=said",)
    before, *_ = replan(*line)
    assert replan(*line)[2] == 0
    change(toy, monkeypatch)
    after, composed, checked = replan(*line)
    assert composed > 1
    assert checked > 0
    assert after == before


def test_inputs_that_fail_validation_bypass_cache(replan, toy):
    (toy / "said").write_text("as it was")
    replan("+data.path=said")
    assert replan("+data.path=said")[2] == 0
    (toy / "said").unlink()
    os.mkfifo(toy / "said")
    assert replan("+data.path=said")[2] > 0


@pytest.mark.parametrize("text", ["${now:%Y}", "${hydra:job.name}", "${hydra.job.name}"])
def test_time_dependent_values_are_not_cached(replan, text):
    for _ in range(2):
        assert replan(f"++model.said='{text}'")[2] > 0
