"""Provenance of reports: the command line and the state of the checkout."""

import json
import os
import subprocess
import sys

import pytest

from attnlab.sweep.plan import provenance


@pytest.mark.parametrize(
    ("line", "command"),
    [
        (["--multirun", "+experiment=a"], "python -m attnlab +experiment=a"),
        (
            ["--config-dir", "my conf", "heads=gqa,mha"],
            "python -m attnlab --config-dir 'my conf' heads=gqa,mha",
        ),
        (["-m", "-cd", "conf", "-cn=mine", "a=b"], "python -m attnlab -cd conf -cn=mine a=b"),
        (
            ["arms=[mha,gqa]", "hydra.searchpath=[file://x]", "data.path='a b'"],
            """python -m attnlab 'arms=[mha,gqa]' 'hydra.searchpath=[file://x]' 'data.path='"'"'a b'"'"''""",
        ),
        (
            ["--config-dir=c", "++sweep.show=report", "+experiment=a"],
            "python -m attnlab --config-dir=c +experiment=a",
        ),
        (["+experiment=a", "++sweep.command='compare x y'"], "compare x y"),
        (
            ["data.path=${oc.env:BOOK}", "a=${oc.env:MY_TOKEN}", "b=${oc.env:NOT_SET,1}"],
            "BOOK='my book' MY_TOKEN=... python -m attnlab 'data.path=${oc.env:BOOK}' 'a=${oc.env:MY_TOKEN}' "
            "'b=${oc.env:NOT_SET,1}'",
        ),
    ],
)
def test_command_is_typed_line(monkeypatch, line, command):
    monkeypatch.setenv("BOOK", "my book")
    monkeypatch.setenv("MY_TOKEN", "secret")
    monkeypatch.delenv("NOT_SET", raising=False)
    assert provenance.format_command(line) == command


@pytest.mark.rare
def test_command_of_report_reproduces_sweep(attnlab):
    """Cover a user's config folder, another working directory, and characters that a shell interprets."""
    group = attnlab.folder / "my conf" / "heads"
    group.mkdir(parents=True)
    (group / "mine.yaml").write_text(
        "# @package _global_\nmodel: {attention: {_target_: toy_variant.Heads, n_heads: 3}}\n"
    )
    line = ["--config-dir", "my conf", "heads=mine,two", "++model.said='a [b] $HOME'"]
    status, _, err = attnlab(*line)
    assert status == 0, err
    [report] = attnlab.folder.glob("reports/sweep_*/report.json")
    command = json.loads(report.read_text())["reproduce"]["command"]
    runs = set(attnlab.folder.glob("runs/*/run.json"))
    assert command.startswith("python -m attnlab --config-path ")
    process = subprocess.run(
        ["bash", "-c", command.replace("python", sys.executable, 1)],
        cwd=attnlab.folder, env=attnlab.environment, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert process.returncode == 0, process.stderr
    assert "2 runs, 2 done, 0 to train" in process.stdout
    assert set(attnlab.folder.glob("runs/*/run.json")) == runs


def test_git_query_leaves_checkout_unchanged(tmp_path, monkeypatch):
    def git(*words):
        identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        subprocess.run(["git", "-C", tmp_path, *identity, *words], check=True, capture_output=True)

    file = tmp_path / "file"
    file.write_text("as it was")
    git("init")
    git("add", "file")
    git("commit", "-m", "one")
    os.utime(file, (1, 1))  # git would refresh its index now
    monkeypatch.setattr(provenance, "HOME", tmp_path)
    before = (tmp_path / ".git" / "index").read_bytes()
    commit, dirty = provenance.get_git_state()
    assert (len(commit), dirty) == (40, False)
    assert (tmp_path / ".git" / "index").read_bytes() == before
