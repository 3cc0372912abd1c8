"""`attnlab check`: its table, its exit status, and a variant of one's own in a folder of one's own."""

import sys

import pytest

from attnlab.cli.commands import parse
from attnlab.cli.verbs import check
from attnlab.errors import Refused
from attnlab.testing import kit

MODULE = """
from attnlab.attention.heads.grouped import GroupedHeads

def sound(**options):
    return GroupedHeads(**options)

def tiled(**options):
    heads = GroupedHeads(**options)
    times = heads.n_heads // heads.n_kv_heads
    heads.expand = lambda state: tuple(part.repeat(1, times, 1, 1) for part in state)
    return heads
"""
YAML = """# @package _global_
defaults: [gqa]
model:
  attention:
    heads: {{_target_: {module}.{name}}}
"""


FEW = ("builds", "grouped_heads_repeat", "kernel_agrees", "cache_reorder")


@pytest.fixture(autouse=True)
def few_laws(monkeypatch):
    """One that is broken here, one that mask=full cannot have, and two more: what is tested is the table."""
    monkeypatch.setattr(kit, "LAWS", [law for law in kit.LAWS if law.name in FEW])


def run(*line: str) -> int:
    return check.main(parse("check", line))


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A config folder with two heads of one's own, and the module that they name."""
    (tmp_path / "conf" / "heads").mkdir(parents=True)
    (tmp_path / "my_heads_of_check.py").write_text(MODULE)
    for name in ("sound", "tiled"):
        path = tmp_path / "conf" / "heads" / f"{name}.yaml"
        path.write_text(YAML.format(module="my_heads_of_check", name=name))
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path / "conf"
    sys.modules.pop("my_heads_of_check", None)


def test_sound_heads_of_ones_own_pass(mine, capsys):
    assert run("heads=sound", "kernel=eager", "--config-dir", str(mine)) == 0
    told = capsys.readouterr().out
    assert "grouped_heads_repeat" in told
    assert " 0 failed" in told


def test_broken_heads_of_ones_own_fail_and_the_law_is_named(mine, capsys):
    assert run(f"--config-dir={mine}", "heads=sound,tiled", "kernel=eager") == 1
    told = " ".join(capsys.readouterr().out.split())
    assert "failed heads=tiled kernel=eager: grouped_heads_repeat at T=" in told


def test_what_is_no_override_is_refused():
    with pytest.raises(Refused, match="--fast"):
        run("--fast")


def test_a_folder_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(Refused, match="no such folder"):
        run("--config-dir", str(tmp_path / "none"))


def test_a_mistyped_value_exits_with_two(capsys):
    from attnlab.cli.main import main

    assert main(["check", "heads=gqq"]) == 2
    assert "gqa" in capsys.readouterr().err


def test_all_that_is_shipped_is_checked_without_arguments(monkeypatch, capsys):
    from attnlab import testing

    few = [testing.combination(heads="mqa"), testing.combination(mask="full")]
    monkeypatch.setattr(testing, "one_at_a_time", lambda: iter(few))
    assert run() == 0
    told = capsys.readouterr().out
    assert "2 variants" in told
    assert "unsupported" in told
    assert "\x1b" not in told, "no terminal"
