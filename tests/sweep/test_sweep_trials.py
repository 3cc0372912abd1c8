"""Trials, with a trainer that knows its times: who is asked, how often, and what is kept."""

from types import SimpleNamespace

import pytest

from attnlab.store.schema import Estimate, RunSpec, Use
from attnlab.sweep.plan import checks
from attnlab.sweep.status import trials


def run(dim, seed=0, steps=3, lr=0.1, **sweep):
    """A run that takes `dim` seconds a step, and cannot be tried at 0."""
    config = {
        "seed": seed, "model": {"dim": dim}, "trainer": {"max_steps": steps},
        "optim": {"lr": lr, "seed": seed}, "sweep": sweep,
    }  # fmt: skip
    return RunSpec(id=f"{dim}{seed}", config=config, estimate=Estimate(), use=Use(arm=str(dim)))


class Context:
    """Its processes answer at once, and it counts what they were asked."""

    def __init__(self):
        self.processes, self.asked = 0, []

    def Pipe(self):  # noqa: N802 - multiprocessing's name
        return Answering(self.asked), SimpleNamespace(close=lambda: None)

    def Process(self, *, target, args):  # noqa: N802
        self.processes += 1
        nothing = dict.fromkeys(("start", "join", "kill"), lambda: None)
        return SimpleNamespace(**nothing, is_alive=lambda: False)


class Answering:
    def __init__(self, asked):
        self.asked, self.close = asked, lambda: None

    def send(self, question):
        self.dim = question[2]["model"]["dim"]
        self.asked.append(self.dim)

    def recv(self):
        dim = self.dim
        return ("found", {"step": dim, "start": 1.0, "row": 2.0}) if dim else ("bug", "it broke")


@pytest.fixture
def context(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where the cache is
    monkeypatch.setattr(trials, "wait", lambda pipes, seconds: pipes)
    return Context()


def test_a_kind_of_run_is_tried_once_whatever_its_seed_steps_and_rate(context):
    runs = [run(7, seed, steps, lr) for seed, steps, lr in ((0, 3, 0.1), (1, 6, 0.1), (2, 3, 0.2))]
    found = trials.trials([*runs, run(9)], context, together=1)
    assert sorted(context.asked) == [7, 9]
    assert {trials.like(each.config) for each in runs} == {trials.like(runs[0].config)}
    assert found[trials.like(runs[0].config)]["step"] == 7
    assert found[trials.like(run(9).config)]["step"] == 9


def test_as_many_are_tried_at_a_time_as_will_be_trained(context):
    trials.trials([run(7, seed) for seed in range(5)], context, together=3)
    assert (context.processes, context.asked) == (3, [7, 7, 7]), "one kind has all three slots"
    alone = Context()
    trials.trials([run(8)], alone, together=3)
    assert alone.processes == 1, "one run has no neighbours"


def test_what_was_found_is_kept_and_what_failed_is_asked_again(context):
    before = trials.trials([run(7), run(0)], context, together=1)
    assert before.keys() == {trials.like(run(7).config)}
    again = Context()
    assert trials.trials([run(7), run(0)], again, together=1) == before
    assert again.asked == [0]
    others = Context()
    trials.trials([run(7), run(7, 1)], others, together=2)
    assert others.asked == [7, 7], "with a neighbour it is another trial"


class Trainer:
    """One that was made for attnlab before there were trials, with one of them added."""

    device_kind = staticmethod(lambda config: "cpu")


def test_a_trainer_without_trials_and_a_run_for_another_device_are_not_tried(monkeypatch):
    monkeypatch.setattr(checks, "trainer", lambda name: Trainer)
    assert checks._answer("mine", "trial", {}) == ("found", None)
    monkeypatch.setattr(Trainer, "trial", staticmethod(lambda config: {"step": 1.0}), raising=False)
    assert checks._answer("mine", "trial", {}) == ("found", {"step": 1.0})
    assert checks._answer("mine", "trial", {"sweep": {"device": "NVIDIA H200"}}) == ("found", None)
    assert checks._answer("mine", "trial", {"sweep": {"device": "cpu"}}) == ("found", {"step": 1.0})
