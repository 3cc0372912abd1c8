import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from attnlab import __version__
from attnlab.cli import hydra
from attnlab.cli import main as entry
from attnlab.cli.commands import VERBS
from attnlab.config import CONF

TOY = Path(__file__).parents[1] / "toy"


@pytest.fixture
def run(monkeypatch, tmp_path, capfd):
    """`run(...)`: exit status, output, errors of a command line over the toy conf tree, in this process."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(TOY))
    monkeypatch.setattr(sys, "argv", ["attnlab"])
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")

    def call(*arguments: str) -> tuple[int, str, str]:
        status = entry.main(
            [*arguments, "--config-path", str(TOY / "conf")] if "=" in "".join(arguments) else arguments
        )
        return status, *capfd.readouterr()

    return call


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (["--multirn", "size=debug"], "no flag --multirn (nearest: --multirun"),
        (["--trus=mine", "size=debug"], "no flag --trus (nearest: --trust"),
        (["optim.lr=abc"], "optim.min_lr is worked out of optim.lr: "),
        (["plan", "model.dim=abc"], "model.ffn_width is worked out of model.dim: "),
    ],
)
def test_what_cannot_be_read_is_told_in_a_line_that_names_what_was_written(line, said, capfd):
    assert entry.main(line) == 2
    out, err = capfd.readouterr()
    assert (out, err.count("\n"), err.startswith(f"attnlab: {said}")) == ("", 1, True)


def test_help_and_list_import_nothing_heavy():
    lines = [
        [],
        ["-h"],
        ["--help"],
        ["list"],
        ["list", "gqa_vs_mha", "heads"],
        ["list", "--json"],
        *([verb, "--help"] for verb in VERBS),
    ]
    script = f"""
import sys
from attnlab.__main__ import main
for line in {lines}:
    status = main(line)
    heavy = [name for name in ("torch", "hydra", "omegaconf", "pytorch_lightning") if name in sys.modules]
    print("==", line, status, heavy)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=CONF.parent, check=False
    )
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stdout.splitlines() if line.startswith("==")] == [
        f"== {line} 0 []" for line in lines
    ]
    assert "Cost at S: 16 to 88 runs" in done.stdout


@pytest.mark.parametrize("name", VERBS)
def test_every_verb_lives_where_it_is_said_to_and_helps_with_its_options_and_two_examples(run, name):
    assert find_spec(VERBS[name].main.partition(":")[0]) is not None
    status, out, _ = run(name, "-h")
    assert status == 0
    assert out.startswith(f"usage: python -m attnlab {name} ")
    examples = out[out.index("examples:") : out.index("options:")]
    assert examples.count(f"\n  python -m attnlab {name}") == 2
    assert all(f"\n    {key.name}= " in out for key in VERBS[name].keys)
    assert run(name, "--version") == (0, f"attnlab {__version__}\n", "")


def test_the_version_is_attnlabs(run):
    assert run("--version") == (0, f"attnlab {__version__}\n", "")


def test_the_help_has_a_line_for_every_verb_and_group():
    text = entry.help_text()
    for name in VERBS:
        assert re.search(rf"^    {name} +\w", text, re.MULTILINE)
    assert re.search(r"^  heads +differential, gla, gqa", text, re.MULTILINE)


def test_a_file_that_is_not_yaml_hides_no_other_from_the_list(run, tmp_path):
    folder = tmp_path / "own" / "experiment"
    folder.mkdir(parents=True)
    (folder / "broken.yaml").write_text("# Cost at S: nothing.\nquestion: [is it?]]\nname: x")
    (folder / "latin.yaml").write_bytes("question: où?".encode("latin-1"))
    (folder / "whole.yaml").write_text("question: >-\n  Does it\n  stand?")
    status, out, _ = run("list", "experiments", "--config-dir", "own")
    assert status == 0
    lines = [line.strip() for line in out.splitlines()]
    assert any(line.startswith("broken ") and "(not YAML: line 2)" in line for line in lines)
    assert any(line.startswith("latin ") for line in lines)
    assert any(line.startswith("whole ") and line.endswith("Does it stand?") for line in lines)
    assert any(line.startswith("gqa_vs_mha ") and line.endswith("?") for line in lines)
    assert "schema" not in out


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (["lst"], "no command lst (nearest: list)"),
        (["status"], "status what?"),
        (["status", "heads=two", "--wach"], "status does not know --wach (nearest: --watch"),
        (["plan", "heads=two", "--config-dir"], "plan: argument -cd/--config-dir: expected one argument"),
        (["list", "hed"], "list hed: no group and no experiment (nearest: heads)"),
        (["plan", "gqa_vs_mah"], "gqa_vs_mah: no experiment of that name (nearest: gqa_vs_mha"),
        (["ladder", "gqa_vs_mah"], "gqa_vs_mah: no experiment of that name (nearest: gqa_vs_mha"),
        (["list", "--config-dir", "nowhere"], "--config-dir nowhere: there is no such folder"),
        (["report", "a", "--diff", "b", "c"], "report which?"),
        (["report", "--diff", "a"], "report: argument --diff: expected 2 arguments"),
        (["schema", "spce"], "no schema spce (nearest: spec)"),
        (["compare", "heads=two"], "compare takes two arms or more"),
        (["heads=tow"], "heads has no option tow (nearest: two)"),
        (["head=two"], "no key head (nearest: heads"),
        (["model.widht=3"], "no key model.widht (nearest: model.width"),
        (["heads=one,tow"], "heads has no option tow (nearest: two)"),
        (["+experiment=haeds"], "experiment has no option haeds (nearest: heads"),
        (["experiment=heads"], "write +experiment=... to add it"),
        (["+experiment=heads", "arms=[tow]"], "heads has no arm tow (nearest: two, twin"),
        (["seed=a"], "seed=a: seeds are integers"),
        (["model.width=[3"], "model.width=[3"),
        (["model.width=0"], "model.width=0"),
        (["model.width=???"], "model.width has no value"),
        (["heads=two", "parent=../x"], "parent=../x: give the id of a run in the store"),
        (["+experiment=heads", "name=../x"], "name='../x' is no plain word"),
        (
            ["heads=two", "++sweep.show=wacht"],
            "sweep.show=wacht (nearest: watch): use python -m attnlab plan",
        ),
        (["sweep.slots=0"], "sweep.slots must be the number of runs"),
        (["sweep.max_time=-1"], "sweep.max_time must be seconds"),
        (["paths.runs=/proc/nowhere"], "paths.runs=/proc/nowhere cannot be written"),
        (["--config-dir", "nowhere", "heads=two"], "nowhere"),
        (["-m", "--cfg", "job", "heads=two"], "Only one of"),
    ],
)
def test_a_command_that_cannot_be_carried_out_is_one_line_and_exit_2_and_nothing_starts(
    run, line, told, tmp_path
):
    status, _, errors = run(*line)
    assert status == 2
    assert errors.startswith("attnlab: ")
    assert errors.count("\n") == 1
    assert told in errors
    assert not (tmp_path / "trained").exists()


def test_hydras_flags_are_those_that_hydra_shows(run):
    status, out, _ = run("--hydra-help")
    assert status == 0
    shown = re.findall(r"^(--[a-z-]+)(?:,(-[a-z]+))? :", out, re.MULTILINE)
    assert {flag for names in shown for flag in names if flag} == {*hydra.FLAGS}


def test_cfg_job_prints_the_composed_config(run):
    status, out, _ = run("--cfg", "job", "heads=four")
    assert status == 0
    assert "n_heads: 4" in out


def test_plan_shows_every_run_and_trains_none(run, tmp_path):
    status, out, errors = run("plan", "+experiment=heads")
    assert status == 0, errors
    assert sum(line.endswith("to train") for line in out.splitlines()) == 6
    assert re.search(r"two +0 +[0-9a-f]{16} +160 +8 ", out)
    assert "6 to train, 0 done" in out
    assert "four - two: 0 finished pairs" in out
    assert not (tmp_path / "trained").exists()


@pytest.mark.usefixtures("blank")
def test_compare_asks_without_a_file_status_says_how_it_stands_and_the_file_keeps_it(run, tmp_path):
    status, out, errors = run("compare", "heads=two", "heads=four", "seed=0,1", "margin=0.5")
    assert status == 0, errors
    assert "report: reports/two_vs_four/report.html" in out
    printed = out[out.index("# @package _global_") :]
    (tmp_path / "own" / "experiment").mkdir(parents=True)
    (tmp_path / "own" / "experiment" / "two_vs_four.yaml").write_text(printed)
    kept = ("--config-dir", "own", "+experiment=two_vs_four")
    status, out, errors = run("status", *kept, "--watch")
    assert status == 0, errors
    assert "4 done; 100% of the work" in out
    report = (tmp_path / "reports" / "two_vs_four" / "report.md").read_text()
    assert "EXPLORATORY" not in report
    assert "attnlab compare heads=two heads=four seed=0,1 margin=0.5" in report


def test_a_bug_of_ours_shows_its_traceback(run, monkeypatch):
    monkeypatch.setattr(entry, "hydra", lambda line: {}["missing"])
    status, _, errors = run("heads=two")
    assert status == 1
    assert "Traceback" in errors


def test_a_python_without_what_attnlab_needs_is_told_in_one_line():
    script = "import sys; sys.modules['hydra'] = None; from attnlab.__main__ import main; "
    line = [sys.executable, "-c", script + "sys.exit(main(['heads=gqa']))"]
    done = subprocess.run(line, capture_output=True, text=True, cwd=CONF.parent, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith(f"attnlab: hydra is not installed for {sys.executable}: ")
    assert done.stderr.count("\n") == 1


def test_whatever_is_wrong_with_one_file_the_list_shows_the_others_and_says_it(run, tmp_path):
    own = tmp_path / "own" / "experiment"
    own.mkdir(parents=True)
    head = "# @package _global_\n"
    files = {
        "twice": f"{head}name: a\nname: b\n",
        "empty": "",
        "bullets": "- a\n",
        "bare": "name: a\n",
        "tabbed": f"{head}arms:\n\t- a\n",
        "quoted": f'{head}name: "a\n',
        "date": f"{head}question: 2024-99-99\n",
        "ring": f"{head}question: &a [*a]\n",
        "whole": f"{head}question: Is it there?\n",
    }
    for name, text in files.items():
        (own / f"{name}.yaml").write_text(text)
    (own / "folder.yaml").mkdir()
    (own / "link.yaml").symlink_to("nowhere")
    (tmp_path / "own" / "mask").mkdir()
    (tmp_path / "own" / "mask" / "gone.yaml").symlink_to("nowhere")
    (tmp_path / "own" / "mask" / "folder.yaml").mkdir()
    status, out, err = run("list", "experiments", "--config-dir", "own")
    assert (status, err) == (0, "")
    told = dict(line.strip().split(None, 1) for line in out.splitlines() if len(line.split()) > 1)
    assert told["whole"] == "Is it there?"
    assert told["twice"] == "(name comes a second time (first in line 2): line 3)"
    assert told["empty"] == "(empty)"
    assert told["bullets"] == "(a list: line 1)"
    assert told["bare"] == "(the first line must be # @package _global_: line 1)"
    assert told["tabbed"] == "(not YAML: line 3)"
    assert told["quoted"] == "(not YAML: line 2)"
    assert told["folder"].startswith("(cannot be read")
    assert told["gqa_vs_mha"].endswith("?")
