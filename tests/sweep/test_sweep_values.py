"""Values outside the run id: they cannot fail the run under it; commands with too many runs fail."""

import time
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from stored_runs import make_spec, write_spec

from attnlab.errors import InvalidConfig
from attnlab.store import fingerprint, run_directories
from attnlab.sweep import engine
from attnlab.sweep.execute import exit_records, process_control, submission, worker
from attnlab.sweep.plan import overrides
from attnlab.sweep.plan.composer import resolve_config

OVERSIZED_RANGES = ["seed=range(0,10000000)", "optim.lr=range(1,10000000)"]


@pytest.mark.parametrize("line", OVERSIZED_RANGES)
def test_oversized_range_fails_at_once(line):
    start = time.monotonic()
    with pytest.raises(InvalidConfig, match="more than 10000 values"):
        overrides.parse_command([line])
    assert time.monotonic() - start < 5  # iterating over all values takes many times longer


def test_too_many_combinations_fail():
    with pytest.raises(InvalidConfig, match="need 1000000 runs"):
        overrides.parse_command(["seed=range(100)", "a=range(100)", "b=range(100)"])


@pytest.mark.parametrize(
    ("message", "key"),
    [
        ("ValueError: sweep.checkpoint_every must be at least 1, got 0", "sweep.checkpoint_every"),
        ("ValueError: `Trainer(log_every_n_steps=0)` is no interval", "trainer.log_every_n_steps"),
        ("ValueError: n_heads=5 does not divide dim=16: change model.n_heads or model.dim", None),
        ("RuntimeError: shapes differ", None),
        ("Refused: planned for cpu: give it with sweep.device='H200'", None),
        ("stopped after sweep.max_time=3 seconds", None),
    ],
)
def test_failure_about_unhashed_key_is_recognized(message, key):
    assert fingerprint.find_unhashed_key(message) == key


@pytest.fixture
def make_failing_run(monkeypatch, tmp_path):
    """`make_failing_run(message)`: a run, and its directory, whose training raises ValueError(message)."""

    class FailingTrainer:
        message = ""

        @staticmethod
        def device_kind(config):
            return "cpu"

        def run(self, folder):
            make.attempts += 1
            raise ValueError(self.message)

    trainer = FailingTrainer()
    monkeypatch.setattr(worker, "load_trainer", lambda name: trainer)

    def make(message):
        trainer.message = message
        run = make_spec({"seed": 0, "trainer": {}})
        return run, write_spec(tmp_path, run)

    make.attempts = 0
    return make


def test_failure_about_unhashed_key_is_not_stored(make_failing_run, capsys):
    run, folder = make_failing_run("trainer.log_every_n_steps must be at least 1, got 0")
    code = worker.train_run(folder)
    assert code == process_control.NOT_RECORDED
    exit_records.record_exit(folder, code, False, time.time())
    assert run_directories.load_run_result(folder) is None
    assert (
        "trainer.log_every_n_steps is not part of the run id, so the same run may succeed elsewhere"
        in capsys.readouterr().err
    )
    assert submission.select_runs_to_launch([run], folder.parent, retry_failed=False) == [run]


def test_only_stored_failure_about_unhashed_key_is_retried(make_failing_run):
    run, folder = make_failing_run("shapes differ")
    assert worker.train_run(folder) == 1
    assert submission.select_runs_to_launch([run], folder.parent, retry_failed=False) == []
    run_directories.write_failure(
        folder, "crashed", "ValueError: sweep.checkpoint_every must be at least 1", time.time()
    )
    [retried] = submission.select_runs_to_launch([run], folder.parent, retry_failed=False)
    assert retried.id == run.id


@pytest.mark.parametrize("retry", [False, True])
def test_failure_after_request_is_not_repeated(make_failing_run, retry):
    run, folder = make_failing_run("shapes differ")
    if retry:
        run_directories.write_failure(folder, "crashed", "the first", time.time())
    requests = [
        submission.select_runs_to_launch([run], folder.parent, retry) for _ in range(2)
    ]  # from two concurrent commands
    for runs in requests:
        for requested in runs:
            run_directories.write_run_config(folder.parent, requested)
            assert worker.train_run(folder) == 1
    assert make_failing_run.attempts == 1
    [retried] = submission.select_runs_to_launch([run], folder.parent, retry_failed=True)
    run_directories.write_run_config(folder.parent, retried)
    assert worker.train_run(folder) == 1
    assert make_failing_run.attempts == 2


def test_referenced_user_key_is_resolved_and_dropped(plan_toy):
    config = OmegaConf.create({"width": 32, "sed": 3, "model": {"dim": "${width}"}, "protocol": {"a": 1}})
    assert resolve_config(config) == {"sed": 3, "model": {"dim": 32}, "protocol": {"a": 1}}
    with_trainer = OmegaConf.merge(config, {"sweep": {"train": "toy_trainer"}})
    assert resolve_config(with_trainer)["width"] == 32


def test_unwritable_folder_fails_with_its_key(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InvalidConfig, match=r"paths\.cache"):
        run_directories.require_writable_folder(tmp_path / "file" / "cache", "paths.cache")


@pytest.mark.rare
@pytest.mark.parametrize("key", ["runs", "reports", "cache"])
def test_folders_are_checked_before_training(attnlab, key):
    Path(attnlab.folder, "file").write_text("in the way")
    status, _, error_output = attnlab("+experiment=heads", f"++paths.{key}=file/below")
    assert status == 2
    assert f"paths.{key}=file/below is not writable" in error_output
    assert len(error_output.strip().splitlines()) == 1
    assert attnlab.load_attempts() == []


@pytest.mark.rare
@pytest.mark.parametrize(
    "line", ["sweep.slots=abc", "++paths.cache=3", "++sweep.checkpoint_every=0", "+sweep.device=[]"]
)
def test_invalid_sweep_values_fail_for_every_trainer(attnlab, line):
    status, _, error_output = attnlab(line)
    assert status == 2
    assert len(error_output.strip().splitlines()) == 1
    assert line.strip("+").partition("=")[0] in error_output
    assert attnlab.load_attempts() == []


def test_invalid_command_values_fail_in_one_line():
    command = {"sweep": {"slots": "abc"}, "paths": {"runs": "runs"}, "logger": {}}
    with pytest.raises(
        InvalidConfig, match=r"^sweep\.slots must be the number of concurrent runs, or null, got abc$"
    ):
        engine.validate_sweep_config(OmegaConf.create(command))
