"""Check cache: a check's answer is reused until an input changes that it could depend on."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
from sampling import full

from attnlab.sweep.plan import check_cache, invariants_gate

USER_MODULE = "users_trainer"


@pytest.fixture
def config(tmp_path, monkeypatch):
    """A config that names a user's module, a text file and a folder; all of them exist."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / f"{USER_MODULE}.py").write_text("def check(config): return {}\n")
    (tmp_path / "book.txt").write_text("one")
    (tmp_path / "cache" / "hub").mkdir(parents=True)
    return {
        "model": {"_target_": f"{USER_MODULE}.Model", "dim": 8},
        "data": {"path": str(tmp_path / "book.txt"), "cache": str(tmp_path / "cache")},
        "sweep": {"slots": None, "show": "plan"},
        "paths": {"cache": str(tmp_path / "cache"), "runs": str(tmp_path)},
    }


@pytest.fixture
def run_check():
    """A check whose answer counts its calls."""
    calls = []
    return lambda: calls.append(0) or {"parameters": len(calls), "data": {"sha256": "x"}, "lr": 0.1}


def compute_fresh_key(config):
    """Return the cache key as another process would compute it, with nothing memoized."""
    for function in (
        check_cache._digest_package_code,
        check_cache._list_installed_packages,
        check_cache._describe_machine,
    ):
        function.cache_clear()
    return check_cache.make_cache_key(config, USER_MODULE)


def test_plan_and_sweep_share_cached_check(config, run_check):
    first = check_cache.load_or_run_check(config, USER_MODULE, run_check)
    assert (
        check_cache.load_or_run_check(config, USER_MODULE, run_check)
        == first
        == {"parameters": 1, "data": {"sha256": "x"}, "lr": 0.1}
    )
    assert (
        check_cache.load_or_run_check({**config, "sweep": {"slots": None}}, USER_MODULE, run_check) == first
    )


def write_with_fixed_time(path: Path, text: str) -> None:
    path.write_text(text)
    os.utime(path, ns=(1, 1))  # the same size, written within one clock tick, would look unchanged


CHANGES = {
    "a value": lambda config, home: config["model"].update(dim=9),
    "the user's code": lambda config, home: (home / f"{USER_MODULE}.py").write_text(
        "def check(config): return 1\n"
    ),
    "a text": lambda config, home: write_with_fixed_time(home / "book.txt", "two"),
    "a text's absence": lambda config, home: (home / "book.txt").unlink(),
    "a text that a pattern matches": lambda config, home: write_with_fixed_time(home / "a.tale", "two"),
    "another text that a pattern matches": lambda config, home: (home / "b.tale").write_text("two"),
    "what the hub gave": lambda config, home: (home / "cache" / "hub" / "it.txt").write_text("text"),
    "an installed package": lambda config, home: (home / "torch-9.dist-info").mkdir(),
    "a setting of the sweep": lambda config, home: config["sweep"].update(device="H100"),
    "a text of the same size and time": lambda config, home: write_with_old_time(home / "book.txt", "two"),
    "the parent's record": lambda config, home: (home / "mother" / "run.json").write_text("{}"),
    "the parent's vocabulary": lambda config, home: (home / "mother" / "vocabulary.json").write_text("{}"),
}


def write_with_old_time(path: Path, text: str) -> None:
    """Write as `cp -p` or an archive does: other content with the old modification time."""
    before = path.stat()
    path.write_text(text)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size


@pytest.mark.parametrize("change", CHANGES)
def test_changed_input_repeats_check(change, config, run_check, tmp_path):
    if "pattern" in change:
        (tmp_path / "a.tale").write_text("one")
        config["data"]["path"] = str(tmp_path / "*.tale")
    config["parent"] = "mother"
    (tmp_path / "mother").mkdir()
    before = compute_fresh_key(config)
    assert compute_fresh_key(config) == before
    check_cache.load_or_run_check(config, USER_MODULE, run_check)
    CHANGES[change](config, tmp_path)
    assert compute_fresh_key(config) != before
    assert check_cache.load_or_run_check(config, USER_MODULE, run_check)["parameters"] == 2


@pytest.mark.parametrize(
    "variable",
    [
        "WANDB_MODE", "WANDB_API_KEY", "MLFLOW_TRACKING_URI", "CUDA_VISIBLE_DEVICES", "HF_HOME",
        "HF_HUB_OFFLINE", "PL_TRAINER_DEVICES", "PYTORCH_ALLOC_CONF", "OMP_NUM_THREADS", "MKL_NUM_THREADS",
        "XDG_CACHE_HOME", "PYTHONPATH", "A_USERS_OWN",
    ],
)  # fmt: skip
def test_changed_environment_variable_repeats_check(variable, config, run_check, monkeypatch):
    monkeypatch.setenv(variable, "one")
    assert check_cache.load_or_run_check(config, USER_MODULE, run_check)["parameters"] == 1
    assert check_cache.load_or_run_check(config, USER_MODULE, run_check)["parameters"] == 1
    monkeypatch.setenv(variable, "two")
    assert check_cache.load_or_run_check(config, USER_MODULE, run_check)["parameters"] == 2
    monkeypatch.delenv(variable)
    assert check_cache.load_or_run_check(config, USER_MODULE, run_check)["parameters"] == 3


@pytest.mark.rare
@full
def test_cached_check_does_not_hide_later_error(tmp_path):
    """Without the variable the check passes and is cached; with it, the check fails before and after that."""
    (tmp_path / "book.txt").write_text("the quick brown fox jumps over the lazy dog. " * 40)
    line = [sys.executable, "-m", "attnlab", "plan", "size=debug", "data=text", "data.path=book.txt"]
    line.append("data.allow_overlap=true")
    results = []
    for mode in ("onlin", "offline", "onlin"):
        environment = {**os.environ, "WANDB_MODE": mode}
        process = subprocess.run(
            line, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        results.append((process.returncode, process.stderr))
    message = (
        "attnlab: logger.mode must be online, offline, shared or disabled, and WANDB_MODE=onlin replaces"
    )
    assert [status for status, _ in results] == [2, 0, 2]
    assert results[0][1].startswith(message)
    assert results[2] == results[0]
    assert list((tmp_path / ".cache" / "checks").iterdir())


def test_session_variables_leave_key_unchanged(config, monkeypatch):
    monkeypatch.setenv("TERM_SESSION_ID", "1")
    before = compute_fresh_key(config)
    for variable in ("_", "SHLVL", "OLDPWD", "SSH_CONNECTION", "TMUX_PANE", "WINDOWID", "TERM_SESSION_ID"):
        monkeypatch.setenv(variable, "another")
    assert compute_fresh_key(config) == before


@pytest.mark.parametrize(
    ("module", "name", "answer"),
    [
        (platform, "node", lambda: "another host"),
        (platform, "machine", lambda: "another processor"),
        (os, "sysconf", lambda name: 1),  # a machine with other memory
        (os, "getcwd", lambda: "/"),
    ],
)
def test_machine_and_working_directory_change_key(module, name, answer, config, monkeypatch):
    before = compute_fresh_key(config)
    monkeypatch.setattr(module, name, answer)
    assert compute_fresh_key(config) != before


def test_devices_and_attnlab_code_change_key(config, monkeypatch, tmp_path):
    before = compute_fresh_key(config)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    with_device = compute_fresh_key(config)
    assert with_device != before
    (tmp_path / "attnlab").mkdir()
    (tmp_path / "attnlab" / "__init__.py").write_text("")
    monkeypatch.setattr(check_cache.attnlab, "__file__", str(tmp_path / "attnlab" / "__init__.py"))
    assert compute_fresh_key(config) != with_device


def test_derived_cache_folders_leave_key_unchanged(config, tmp_path):
    before = compute_fresh_key(config)
    for name in ("tokens", "tokenizers", "overlap", "corpora", "invariants", "checks", "seeds"):
        (tmp_path / "cache" / name).mkdir()
        (tmp_path / "cache" / name / "file").write_text("made here")
    assert compute_fresh_key(config) == before


def test_check_that_fills_cache_folder_is_cached(config, run_check, tmp_path):
    def download_and_check():
        (tmp_path / "cache" / "hub" / "it.txt").write_text("text")
        return run_check()

    assert check_cache.load_or_run_check(
        config, USER_MODULE, download_and_check
    ) == check_cache.load_or_run_check(config, USER_MODULE, download_and_check)


def test_unhashable_or_unserializable_checks_are_not_cached(config, run_check, monkeypatch, tmp_path):
    assert check_cache.make_cache_key({**config, "model": object()}, USER_MODULE) is None
    for number in (1, 2):
        assert (
            check_cache.load_or_run_check({**config, "model": object()}, USER_MODULE, run_check)["parameters"]
            == number
        )
    monkeypatch.setattr(check_cache, "MAX_FILES", 0)
    assert check_cache.load_or_run_check(config, USER_MODULE, run_check)["parameters"] == 3
    assert check_cache.load_or_run_check(config, USER_MODULE, run_check)["parameters"] == 4
    monkeypatch.setattr(check_cache, "MAX_FILES", 2000)
    pairs = {"pair": (1, 2)}  # would come back as a list
    check_cache.load_or_run_check(config, USER_MODULE, lambda: pairs)
    assert check_cache.load_or_run_check(config, USER_MODULE, lambda: pairs) is pairs


def test_errors_are_not_cached(config, run_check):
    def fail_check():
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        check_cache.load_or_run_check(config, USER_MODULE, fail_check)
    assert check_cache.load_or_run_check(config, USER_MODULE, run_check)["parameters"] == 1


@pytest.mark.parametrize(
    "option", ["heads=gqa", "residual=attention", "block=parallel", "parametrization=mup", "decode=static"]
)
def test_every_tested_part_changes_the_key_of_the_invariants(option, compose):
    plain, changed = (
        invariants_gate.make_cache_key(config, invariants_gate.INVARIANTS_MODULE)
        for config in (compose(), compose(option))
    )
    assert plain != changed
