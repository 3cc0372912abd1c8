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
def test_the_command_is_the_line_that_was_typed(monkeypatch, line, command):
    monkeypatch.setenv("BOOK", "my book")
    monkeypatch.setenv("MY_TOKEN", "secret")
    monkeypatch.delenv("NOT_SET", raising=False)
    assert provenance.typed(line) == command


@pytest.mark.rare
def test_a_pages_command_makes_the_same_sweep(attnlab):
    """With a folder of configs of the user's own, in another directory, and what a shell would break."""
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
    again = subprocess.run(
        ["bash", "-c", command.replace("python", sys.executable, 1)],
        cwd=attnlab.folder, env=attnlab.environment, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert again.returncode == 0, again.stderr
    assert "2 runs, 2 done, 0 to train" in again.stdout
    assert set(attnlab.folder.glob("runs/*/run.json")) == runs


def test_asking_git_leaves_the_users_checkout_as_it_is(tmp_path, monkeypatch):
    def git(*words):
        who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        subprocess.run(["git", "-C", tmp_path, *who, *words], check=True, capture_output=True)

    file = tmp_path / "file"
    file.write_text("as it was")
    git("init")
    git("add", "file")
    git("commit", "-m", "one")
    os.utime(file, (1, 1))  # git would now like to write its index anew
    monkeypatch.setattr(provenance, "HOME", tmp_path)
    before = (tmp_path / ".git" / "index").read_bytes()
    commit, dirty = provenance.git()
    assert (len(commit), dirty) == (40, False)
    assert (tmp_path / ".git" / "index").read_bytes() == before
