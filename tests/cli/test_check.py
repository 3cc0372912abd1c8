"""`attnlab check`: table, exit status, and user variants in a config folder."""

import shutil
import signal
import sys

import pytest

from attnlab import testing
from attnlab.cli.main import main
from attnlab.config import CONF
from attnlab.testing import conformance
from attnlab.testing.invariants import variant

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


FEW = ("builds", "grouped_heads_equal_repeated_heads", "kernel_matches_reference", "cache_reorder")


@pytest.fixture(autouse=True)
def few_invariants(monkeypatch):
    """Keep four invariants, as the tests are about the table: one fails below, mask=full lacks one."""
    monkeypatch.setattr(
        conformance,
        "INVARIANTS",
        [invariant for invariant in conformance.INVARIANTS if invariant.name in FEW],
    )


@pytest.fixture
def run(capfd):
    """`run(line)`: check a line; return status and stdout."""

    def call(line="", *words):
        return main(["check", *line.split(), *words]), capfd.readouterr().out

    return call


@pytest.fixture
def user_conf(tmp_path, monkeypatch):
    """A config folder with two user-defined heads, and their module on the path; its name needs quotes."""
    folder = tmp_path / r"it's ${x} # a\b"
    (folder / "heads").mkdir(parents=True)
    (tmp_path / "my_heads_of_check.py").write_text(MODULE)
    for name in ("sound", "tiled"):
        path = folder / "heads" / f"{name}.yaml"
        path.write_text(YAML.format(module="my_heads_of_check", name=name))
    monkeypatch.syspath_prepend(tmp_path)
    yield folder
    sys.modules.pop("my_heads_of_check", None)


def test_sound_user_heads_pass_and_broken_ones_fail_with_the_invariant_named(user_conf, run):
    words = ("--config-dir", str(user_conf))
    assert run("heads=sound kernel=eager", *words) == (0, "4 conformance tests passed\n")
    status, out = run("heads=sound kernel=eager -v", *words)
    assert (status, "grouped_heads_equal_repeated_heads" in out) == (0, True)
    assert out.endswith("4 conformance tests passed\n")
    status, out = run("heads=sound,tiled kernel=eager", *words)
    failure = "failed heads=tiled kernel=eager: grouped_heads_equal_repeated_heads at T="
    assert (status, failure in " ".join(out.split())) == (1, True)


def test_a_variant_of_which_nothing_can_be_checked_fails(monkeypatch, run):
    outcomes = [conformance.Outcome("builds", "heads=odd", "unsupported", "needs a GPU", "1. It builds.")]
    monkeypatch.setattr(testing, "evaluate_variant", lambda variant: outcomes)
    status, out = run("heads=gqa")
    assert (status, "nothing could be checked heads=gqa: needs a GPU" in out) == (1, True)


def test_part_that_cannot_be_imported_is_one_line(user_conf, refuse):
    (user_conf / "heads" / "away.yaml").write_text(
        "# @package model.attention.heads\n_target_: away.heads.Away\n"
    )
    message = (
        "model.attention.heads._target_=away.heads.Away: there is no module away; install it, or add the"
    )
    refuse(["check", "heads=away", "--config-dir", str(user_conf)], message)


def test_option_that_attnlab_has_too_is_one_line_unless_the_files_are_equal(user_conf, run, refuse):
    words = ["heads=sound", "kernel=eager", "--config-dir", str(user_conf)]
    (user_conf / "position").mkdir()
    file = shutil.copy(CONF / "position" / "alibi.yaml", user_conf / "position")
    assert run("position=alibi", *words)[0] == 0
    with open(file, "a") as stream:
        stream.write("# mine\n")
    assert run("position=rope", *words)[0] == 0
    error = f"{file}: position=alibi is in {CONF} too, which would be used: rename the file\n"
    refuse(["check", "position=alibi", *words], error)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "heads=mha heads=gqa",
            "heads is set twice, heads=mha and heads=gqa: remove one, or test both with heads=mha,gqa",
        ),
        ("+experiment=smoke", "+experiment=smoke: experiment= is only for sweeps"),
        ("ladder=depth", "ladder=depth: ladder= is only for sweeps"),
        ("--fast", "--fast"),
        ("--config-dir none", "folder not found"),
        ("heads=gqq", "gqa"),
    ],
)
def test_invalid_words_are_one_line(refuse, line, message):
    refuse(f"check {line}", message)


@pytest.mark.parametrize("statement", ["exit()", "raise SystemExit(3)", "raise KeyboardInterrupt"])
@pytest.mark.parametrize("place", ["module", "constructor", "method"])
def test_part_that_ends_the_program_is_reported(user_conf, capsys, statement, place):
    wrapped = {
        "module": f"{MODULE}\n{statement}\n",
        "constructor": MODULE.replace("def sound(**options):", f"def sound(**options):\n    {statement}"),
        "method": MODULE.replace(
            "    return GroupedHeads(**options)\n",
            f"    heads = GroupedHeads(**options)\n    def leave(*inputs): {statement}\n"
            "    heads.merge = leave\n    return heads\n",
            1,
        ),
    }
    (user_conf.parent / "my_heads_of_check.py").write_text(wrapped[place])
    for built in (variant._build_part, variant._build_prototype):
        built.cache_clear()  # by name, as if the module had not changed
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a background process
    try:
        status = main(["check", "heads=sound", "kernel=eager", "--config-dir", str(user_conf)])
    finally:
        signal.signal(signal.SIGINT, previous)
    out, err = capsys.readouterr()
    failed = status == 1 and "SystemExit" in out
    one_line = status == 2 and err.startswith("attnlab: ") and len(err.splitlines()) == 1
    assert failed or one_line, (status, out, err)


def test_without_arguments_all_shipped_variants_are_checked(monkeypatch, run):
    few_variants = [testing.combine_choices(heads="mqa"), testing.combine_choices(mask="full")]
    monkeypatch.setattr(testing, "iter_single_axis_variants", lambda: iter(few_variants))
    assert run() == (0, "2 variants: 6 conformance tests passed, 1 unsupported (-v lists them)\n")
    status, out = run("-v")
    assert (status, "unsupported mask=full" in out, "\x1b" in out) == (0, True, False), "no terminal"
