"""What is outside a run's id cannot fail the run under it; a command that asks for too much is told so."""

import time
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from attnlab.errors import Refused
from attnlab.store import fingerprint, runs
from attnlab.store.schema import RunSpec
from attnlab.sweep import engine
from attnlab.sweep.execute import exits, process, submit, worker
from attnlab.sweep.plan import overrides
from attnlab.sweep.plan.composer import resolve

TOO_MANY = ["seed=range(0,10000000)", "optim.lr=range(1,10000000)"]


@pytest.mark.parametrize("line", TOO_MANY)
def test_too_many_runs_to_be_meant_are_refused_at_once(line):
    began = time.monotonic()
    with pytest.raises(Refused, match="more values than a command can mean"):
        overrides.read([line])
    assert time.monotonic() - began < 5  # one by one they take many times that


def test_too_many_runs_by_several_keys_are_refused_too():
    with pytest.raises(Refused, match="ask for 1000000 runs"):
        overrides.read(["seed=range(100)", "a=range(100)", "b=range(100)"])


@pytest.mark.parametrize(
    ("message", "key"),
    [
        ("ValueError: sweep.checkpoint_every must be at least 1, got 0", "sweep.checkpoint_every"),
        ("ValueError: `Trainer(log_every_n_steps=0)` is no interval", "trainer.log_every_n_steps"),
        ("ValueError: 5 heads do not divide the width 16: change model.n_heads or model.dim", None),
        ("RuntimeError: shapes differ", None),
        ("Refused: planned for cpu: give it with sweep.device='H200'", None),
        ("stopped after sweep.max_time=3 seconds", None),
    ],
)
def test_a_failure_that_names_a_key_outside_the_id_is_told_from_the_runs_own(message, key):
    assert fingerprint.outside(message) == key


@pytest.fixture
def failing(monkeypatch, tmp_path):
    """`failing(message)`: the folder of a run whose training raises ValueError(message)."""

    class Failing:
        message = ""

        @staticmethod
        def device_kind(config):
            return "cpu"

        def run(self, folder):
            make.attempts += 1
            raise ValueError(self.message)

    broken = Failing()
    monkeypatch.setattr(worker, "trainer", lambda name: broken)

    def make(message):
        broken.message = message
        run = RunSpec(id="a", config={"seed": 0, "trainer": {}})
        runs.write_spec(tmp_path, run)
        return run, tmp_path / "a"

    make.attempts = 0
    return make


def test_a_failure_over_a_key_outside_the_id_is_not_stored_as_the_ids(failing, capsys):
    run, folder = failing("trainer.log_every_n_steps must be at least 1, got 0")
    code = worker.train(folder)
    assert code == process.NOT_RECORDED
    exits.record_exit(folder, code, False, time.time())
    assert runs.record(folder) is None
    assert "trainer.log_every_n_steps is no part of what the run is" in capsys.readouterr().err
    assert submit.todo([run], folder.parent, retry_failed=False) == [run]


def test_one_that_was_stored_before_is_tried_again_and_a_runs_own_is_not(failing):
    run, folder = failing("shapes differ")
    assert worker.train(folder) == 1
    assert submit.todo([run], folder.parent, retry_failed=False) == []
    runs.write_failure(
        folder, "crashed", "ValueError: sweep.checkpoint_every must be at least 1", time.time()
    )
    [again] = submit.todo([run], folder.parent, retry_failed=False)
    assert again.id == run.id


@pytest.mark.parametrize("retry", [False, True])
def test_a_failure_that_came_after_a_run_was_asked_for_is_not_repeated(failing, retry):
    run, folder = failing("shapes differ")
    if retry:
        runs.write_failure(folder, "crashed", "the first", time.time())
    asked = [submit.todo([run], folder.parent, retry) for _ in range(2)]  # by two commands at once
    for todo in asked:
        for one in todo:
            runs.write_spec(folder.parent, one)
            assert worker.train(folder) == 1
    assert failing.attempts == 1
    [last] = submit.todo([run], folder.parent, retry_failed=True)
    runs.write_spec(folder.parent, last)
    assert worker.train(folder) == 1
    assert failing.attempts == 2


def test_a_key_that_others_refer_to_is_read(planned):
    written = OmegaConf.create({"width": 32, "sed": 3, "model": {"dim": "${width}"}, "protocol": {"a": 1}})
    assert resolve(written) == {"sed": 3, "model": {"dim": 32}, "protocol": {"a": 1}}
    users = OmegaConf.merge(written, {"sweep": {"train": "toy_trainer"}})
    assert resolve(users)["width"] == 32


def test_a_folder_that_cannot_be_written_is_refused_by_its_key(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(Refused, match=r"paths\.cache"):
        runs.refuse_unwritable(tmp_path / "file" / "cache", "paths.cache")


@pytest.mark.rare
@pytest.mark.parametrize("key", ["runs", "reports", "cache"])
def test_folders_are_tried_before_anything_is_trained(attnlab, key):
    Path(attnlab.folder, "file").write_text("in the way")
    status, _, told = attnlab("+experiment=heads", f"++paths.{key}=file/below")
    assert status == 2
    assert f"paths.{key}=file/below cannot be written" in told
    assert len(told.strip().splitlines()) == 1
    assert attnlab.trained() == []


@pytest.mark.rare
@pytest.mark.parametrize(
    "line", ["sweep.slots=abc", "++paths.cache=3", "++sweep.checkpoint_every=0", "+sweep.device=[]"]
)
def test_what_the_sweep_itself_reads_is_refused_for_every_trainer(attnlab, line):
    status, _, told = attnlab(line)
    assert status == 2
    assert len(told.strip().splitlines()) == 1
    assert line.strip("+").partition("=")[0] in told
    assert attnlab.trained() == []


def test_the_commands_own_values_are_refused_in_one_line():
    command = {"sweep": {"slots": "abc"}, "paths": {"runs": "runs"}, "logger": {}}
    with pytest.raises(
        Refused, match=r"^sweep\.slots must be the number of runs at a time, or null, got abc$"
    ):
        engine.refuse_values(OmegaConf.create(command))
