"""What a check answered is kept for as long as nothing changes that it could depend on, and no longer."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
from sampling import full

from attnlab.sweep.plan import kept

USERS = "users_trainer"


@pytest.fixture
def config(tmp_path, monkeypatch):
    """A config that names a user's module, a text and a folder, each of them there."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / f"{USERS}.py").write_text("def check(config): return {}\n")
    (tmp_path / "book.txt").write_text("one")
    (tmp_path / "cache" / "hub").mkdir(parents=True)
    return {
        "model": {"_target_": f"{USERS}.Model", "dim": 8},
        "data": {"path": str(tmp_path / "book.txt"), "cache": str(tmp_path / "cache")},
        "sweep": {"slots": None, "show": "plan"},
        "paths": {"cache": str(tmp_path / "cache"), "runs": str(tmp_path)},
    }


@pytest.fixture
def ask():
    """Answers with how often it was asked."""
    asked = []
    return lambda: asked.append(0) or {"parameters": len(asked), "data": {"sha256": "x"}, "lr": 0.1}


def named(config):
    """The name as another command would find it, which has nothing in its memory."""
    for one in (kept._sources, kept._code, kept._packages, kept._machine):
        one.cache_clear()
    return kept.name(config, USERS)


def test_what_was_asked_is_not_asked_again_by_a_plan_or_its_sweep(config, ask):
    first = kept.remembered(config, USERS, ask)
    assert (
        kept.remembered(config, USERS, ask) == first == {"parameters": 1, "data": {"sha256": "x"}, "lr": 0.1}
    )
    assert kept.remembered({**config, "sweep": {"slots": None}}, USERS, ask) == first


def renewed(path: Path, text: str) -> None:
    path.write_text(text)
    os.utime(path, ns=(1, 1))  # as long as before and written in the same moment is the same to a clock


CHANGES = {
    "a value": lambda config, home: config["model"].update(dim=9),
    "the user's code": lambda config, home: (home / f"{USERS}.py").write_text(
        "def check(config): return 1\n"
    ),
    "a text": lambda config, home: renewed(home / "book.txt", "two"),
    "a text's absence": lambda config, home: (home / "book.txt").unlink(),
    "a text that a pattern matches": lambda config, home: renewed(home / "a.tale", "two"),
    "another text that a pattern matches": lambda config, home: (home / "b.tale").write_text("two"),
    "what the hub gave": lambda config, home: (home / "cache" / "hub" / "it.txt").write_text("text"),
    "an installed package": lambda config, home: (home / "torch-9.dist-info").mkdir(),
    "a setting of the sweep": lambda config, home: config["sweep"].update(device="H100"),
    "a text of the same size and time": lambda config, home: rewrite(home / "book.txt", "two"),
    "the parent's record": lambda config, home: (home / "mother" / "run.json").write_text("{}"),
    "the parent's vocabulary": lambda config, home: (home / "mother" / "vocabulary.json").write_text("{}"),
}


def rewrite(path: Path, text: str) -> None:
    """As `cp -p` or an archive leaves it: another content with the old time of writing."""
    before = path.stat()
    path.write_text(text)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_asks_again(what, config, ask, tmp_path):
    if "pattern" in what:
        (tmp_path / "a.tale").write_text("one")
        config["data"]["path"] = str(tmp_path / "*.tale")
    config["parent"] = "mother"
    (tmp_path / "mother").mkdir()
    before = named(config)
    assert named(config) == before
    kept.remembered(config, USERS, ask)
    CHANGES[what](config, tmp_path)
    assert named(config) != before
    assert kept.remembered(config, USERS, ask)["parameters"] == 2


@pytest.mark.parametrize(
    "variable",
    [
        "WANDB_MODE", "WANDB_API_KEY", "MLFLOW_TRACKING_URI", "CUDA_VISIBLE_DEVICES", "HF_HOME",
        "HF_HUB_OFFLINE", "PL_TRAINER_DEVICES", "PYTORCH_ALLOC_CONF", "OMP_NUM_THREADS", "MKL_NUM_THREADS",
        "XDG_CACHE_HOME", "PYTHONPATH", "A_USERS_OWN",
    ],
)  # fmt: skip
def test_a_variable_of_the_environment_asks_again(variable, config, ask, monkeypatch):
    monkeypatch.setenv(variable, "one")
    assert kept.remembered(config, USERS, ask)["parameters"] == 1
    assert kept.remembered(config, USERS, ask)["parameters"] == 1
    monkeypatch.setenv(variable, "two")
    assert kept.remembered(config, USERS, ask)["parameters"] == 2
    monkeypatch.delenv(variable)
    assert kept.remembered(config, USERS, ask)["parameters"] == 3


@pytest.mark.rare
@full
def test_a_refusal_is_told_again_where_the_cache_has_an_answer(tmp_path):
    """Without the variable the check passes and is kept; with it, it is refused before and after that."""
    (tmp_path / "book.txt").write_text("the quick brown fox jumps over the lazy dog. " * 40)
    line = [sys.executable, "-m", "attnlab", "plan", "size=debug", "data=text", "data.path=book.txt"]
    found = []
    for mode in ("onlin", "offline", "onlin"):
        environment = {**os.environ, "WANDB_MODE": mode}
        ended = subprocess.run(
            line, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        found.append((ended.returncode, ended.stderr))
    told = "attnlab: logger.mode must be online, offline, shared or disabled, and WANDB_MODE=onlin replaces"
    assert [status for status, _ in found] == [2, 0, 2]
    assert found[0][1].startswith(told)
    assert found[2] == found[0]
    assert list((tmp_path / ".cache" / "checks").iterdir())


def test_another_terminal_asks_nothing_again(config, monkeypatch):
    monkeypatch.setenv("TERM_SESSION_ID", "1")
    before = named(config)
    for variable in ("_", "SHLVL", "OLDPWD", "SSH_CONNECTION", "TMUX_PANE", "WINDOWID", "TERM_SESSION_ID"):
        monkeypatch.setenv(variable, "another")
    assert named(config) == before


@pytest.mark.parametrize(
    ("module", "name", "answer"),
    [
        (platform, "node", lambda: "another host"),
        (platform, "machine", lambda: "another processor"),
        (os, "sysconf", lambda name: 1),  # a machine with other memory
        (os, "getcwd", lambda: "/"),
    ],
)
def test_another_machine_or_folder_asks_again(module, name, answer, config, monkeypatch):
    before = named(config)
    monkeypatch.setattr(module, name, answer)
    assert named(config) != before


def test_devices_and_attnlabs_own_code_count(config, monkeypatch, tmp_path):
    before = named(config)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    without = named(config)
    assert without != before
    (tmp_path / "attnlab").mkdir()
    (tmp_path / "attnlab" / "__init__.py").write_text("")
    monkeypatch.setattr(kept.attnlab, "__file__", str(tmp_path / "attnlab" / "__init__.py"))
    assert named(config) != without


def test_what_is_made_of_the_text_changes_nothing(config, tmp_path):
    before = named(config)
    for made in ("tokens", "tokenizers", "corpora", "laws", "checks", "seeds"):
        (tmp_path / "cache" / made).mkdir()
        (tmp_path / "cache" / made / "file").write_text("made here")
    assert named(config) == before


def test_an_answer_that_asking_changed_the_cache_for_is_found_again(config, ask, tmp_path):
    def asked():
        (tmp_path / "cache" / "hub" / "it.txt").write_text("text")
        return ask()

    assert kept.remembered(config, USERS, asked) == kept.remembered(config, USERS, asked)


def test_what_cannot_be_named_or_written_is_asked_each_time(config, ask, monkeypatch, tmp_path):
    assert kept.name({**config, "model": object()}, USERS) is None
    for number in (1, 2):
        assert kept.remembered({**config, "model": object()}, USERS, ask)["parameters"] == number
    monkeypatch.setattr(kept, "MANY", 0)
    assert kept.remembered(config, USERS, ask)["parameters"] == 3
    assert kept.remembered(config, USERS, ask)["parameters"] == 4
    monkeypatch.setattr(kept, "MANY", 2000)
    pairs = {"pair": (1, 2)}  # would come back as a list
    kept.remembered(config, USERS, lambda: pairs)
    assert kept.remembered(config, USERS, lambda: pairs) is pairs


def test_a_refusal_is_not_kept(config, ask):
    def refuses():
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        kept.remembered(config, USERS, refuses)
    assert kept.remembered(config, USERS, ask)["parameters"] == 1
