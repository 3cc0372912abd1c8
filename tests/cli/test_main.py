"""The entry point: help, list, one-line errors, and commands over the toy config."""

import os
import re
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from attnlab import __version__
from attnlab.cli import hydra_errors, hydra_runner, own_options
from attnlab.cli import main as entry
from attnlab.cli.commands import VERBS
from attnlab.config import CONF

TOY = Path(__file__).parents[1] / "toy"


@pytest.fixture
def run_main(monkeypatch, tmp_path, capfd):
    """`run_main(line)`: run a line over the toy config in this process; return status, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(TOY))
    monkeypatch.setattr(sys, "argv", ["attnlab"])
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")

    def call(line):
        status = entry.main(shlex.split(f"{line} --config-path {TOY / 'conf'}" if "=" in line else line))
        return status, *capfd.readouterr()

    return call


def run_module(*words, **environment):
    """Run a command in a new process."""
    return subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        text=True,
        cwd=CONF.parent,
        env=os.environ | environment,
    )


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--multirn size=debug", "unknown flag --multirn (nearest: --multirun"),
        ("--trus=mine size=debug", "unknown flag --trus (nearest: --trust"),
        ("-z size=debug", "unknown flag -z"),
        ("--size=debug", "unknown flag --size: write size=debug: see"),
        ("plan gqa_vs_mha --size debug", "plan: unknown flag --size: write size=debug: see"),
        (
            "plan --experiment gqa_vs_mha",
            "plan: unknown flag --experiment: write +experiment=gqa_vs_",
        ),
        ("clean --size debug", "clean: unknown flag --size (nearest: "),
        ("-config-dir=conf size=debug", "unknown flag -config-dir (nearest: --config-dir"),
        ("hydra.launcher=null", "Hydra launcher is not configured: check the overrides of hydra"),
        ("'seed=range(1,nan)'", "seed=range(1,nan): give the range in finite numbers"),
        ("'model.dim=range(1,nan)'", "model.dim=range(1,nan): give the range in finite numbers"),
        ("optim.lr=abc", "optim.min_lr is computed from optim.lr: give a number\n"),
        ("plan model.dim=abc", "model.ffn_width is computed from model.dim: "),
        (
            "plan heads=mla layers=cross_layer",
            "layers with shared keys and values (layers=cross_layer, yoco) read those of grouped heads, but ",
        ),
    ],
)
def test_unreadable_line_is_one_line_that_names_the_written_key(line, message, refuse):
    assert refuse(line).startswith(f"attnlab: {message}")


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("lr", "optim.lr"),
        ("optim.learning_rate", "optim.lr"),
        ("steps", "trainer.max_steps, model.mixer.steps_per_token"),
        ("n_heads", "model.n_heads, model.mixer.n_heads"),
        ("kv_heads", "model.heads.n_kv_heads, model.n_heads, model.mixer.n_heads"),
        ("hed", "heads"),
    ],
)
def test_unknown_key_suggests_the_path_of_its_last_part(name, nearest):
    keys = (
        "heads optim.lr tune.lr optim.warmup protocol.steps measurement.steps trainer.max_steps "
        "model.mixer.steps_per_token model.n_heads model.mixer.n_heads model.heads.n_kv_heads"
    )
    assert hydra_errors.format_key_suggestions(name, {*keys.split()}) == f" (nearest: {nearest})"


def test_help_and_list_import_nothing_heavy():
    lines = [
        "",
        "-h",
        "--help",
        "list",
        "list gqa_vs_mha heads",
        "list --json",
        *(f"{v} --help" for v in VERBS),
    ]
    script = f"""
import sys
from attnlab.__main__ import main
for line in {lines}:
    status = main(line.split())
    heavy = [name for name in ("torch", "hydra", "omegaconf", "pytorch_lightning") if name in sys.modules]
    print("==", line, status, heavy)
"""
    result = run_module("-c", script)
    shown = [line for line in result.stdout.splitlines() if line.startswith("==")]
    assert shown == [f"== {line} 0 []" for line in lines], result.stderr
    assert "Cost at S: 16 to 88 runs" in result.stdout


@pytest.mark.parametrize("name", VERBS)
def test_every_verb_is_importable_and_its_help_has_options_and_two_examples(run_main, name):
    assert find_spec(VERBS[name].entry_point.partition(":")[0]) is not None
    status, out, _ = run_main(f"{name} -h")
    assert (status, out.startswith(f"usage: python -m attnlab {name} ")) == (0, True)
    examples = out[out.index("examples:") : out.index("options:")]
    assert examples.count(f"\n  python -m attnlab {name}") == 2
    assert all(f"\n    {key.name}= " in out for key in VERBS[name].keys)
    assert run_main(f"{name} --version") == (0, f"attnlab {__version__}\n", "")


def test_help_has_a_line_for_every_verb_and_group():
    help_text = entry.format_main_help()
    for name in VERBS:
        assert re.search(rf"^    {name} +\w", help_text, re.MULTILINE)
    assert re.search(r"^  heads +differential, gla, gqa", help_text, re.MULTILINE)


@pytest.mark.sampled(10)
@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("lst", "unknown command lst (nearest: list, cost)"),
        ("show gqa_vs_mha", "unknown command show (available: list, plan, "),
        ("run gqa_vs_mha", "unknown command run: write python -m attnlab +experiment=gqa_vs_mha\n"),
        ("train heads=two", "unknown command train: write python -m attnlab heads=two"),
        ("gqa_vs_mha", "unknown command gqa_vs_mha: write python -m attnlab +experiment=gqa_vs_mha\n"),
        ("heads=two plan", "the verb comes first: write python -m attnlab plan heads=two"),
        ("status", "status needs an experiment"),
        ("status heads=two --wach", "status: unknown flag --wach (nearest: --watch"),
        ("plan heads=two --config-dir", "plan: argument -cd/--config-dir: expected one argument"),
        ("list hed", "list hed: not a group or experiment (nearest: heads, schedule)"),
        ("plan gqa_vs_mah", "gqa_vs_mah: unknown experiment (nearest: gqa_vs_mha"),
        ("plan gqa_vs.mah", "gqa_vs.mah: unknown experiment (nearest: gqa_vs_mha"),
        ("work gqa_vs_mah", "gqa_vs_mah: unknown experiment (nearest: gqa_vs_mha"),
        (
            "plan gqa_vs_mha mla_vs_gqa",
            "+experiment=gqa_vs_mha +experiment=mla_vs_gqa: a command takes one experiment: remove the",
        ),
        ("heads=two heads", "heads: not an override: write key=value\n"),
        ("--cfg foo heads=two", "--cfg foo: must be one of job, hydra, all\n"),
        ("heads=two -c=", "-c : must be one of job, hydra, all\n"),
        ("ladder gqa_vs_mah", "gqa_vs_mah: unknown experiment (nearest: gqa_vs_mha"),
        ("list --config-dir nowhere", "--config-dir nowhere: folder not found: give an existing one"),
        ("report a --diff b c", "report needs a folder"),
        ("report a --config-dir conf", "report --config-dir needs --now: add it, or remove"),
        ("report --diff a", "report: argument --diff: expected 2 arguments"),
        ("schema spce", "unknown schema spce (nearest: spec)"),
        ("compare heads=two", "compare needs two or more arms"),
        ("heads=tow", "heads has no option tow (nearest: two)"),
        ("head=two", "unknown key head (nearest: heads"),
        ("frobnicate=1", "unknown key frobnicate: to add it, write +frobnicate=...\n"),
        ("model.widht=3", "unknown key model.widht (nearest: model.width"),
        ("'model={widht: 3}'", "unknown key model.widht (nearest: model.width"),
        ("metrics=x", "metrics is a key of experiments: add +experiment=NAME, or write +metrics=... if"),
        ("'texts=[code]'", "unknown key texts (texts was renamed to corpora)"),
        ("heads=one,tow", "heads has no option tow (nearest: two)"),
        ("+experiment=haeds", "experiment has no option haeds (nearest: heads"),
        ("experiment=heads", "write +experiment=... to select one"),
        ("+experiment=heads 'arms=[tow]'", "heads has no arm tow (nearest: two, twin"),
        ("seed=a", "seed=a: seeds must be integers"),
        ("'model.width=[3'", "model.width=[3"),
        ("model.width=0", "model.width=0"),
        ("'model.width=???'", "model.width has no value"),
        ("heads=two parent=../x", "parent=../x: a path is not allowed"),
        ("+experiment=heads name=../x", "name='../x' is not a valid folder name"),
        (
            "heads=two ++sweep.show=wacht",
            "sweep.show=wacht (nearest: watch): use python -m attnlab plan",
        ),
        ("sweep.slots=0", "sweep.slots must be the number of concurrent runs"),
        ("sweep.max_time=-1", "sweep.max_time must be seconds"),
        ("paths.runs=/proc/nowhere", "paths.runs=/proc/nowhere is not writable"),
        ("--config-dir nowhere heads=two", "nowhere"),
        ("-m --cfg job heads=two", "Only one of"),
    ],
)
def test_invalid_command_is_one_line_with_exit_2_and_starts_nothing(run_main, line, message, tmp_path):
    status, _, errors = run_main(line)
    assert (status, errors.startswith("attnlab: "), errors.count("\n")) == (2, True, 1), errors
    assert message in errors
    assert not (tmp_path / "trained").exists()


@pytest.fixture
def own_conf(tmp_path, monkeypatch):
    """`conf/` of the current folder, with a mask and an experiment that attnlab lacks."""
    for file in ("mask/banded", "heads/gqa", "experiment/mine"):
        path = tmp_path / "conf" / f"{file}.yaml"
        path.parent.mkdir(parents=True)
        path.write_text("question: Is it?\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["attnlab"])
    return tmp_path / "conf"


@pytest.mark.usefixtures("own_conf")
@pytest.mark.parametrize(
    ("line", "problem"),
    [
        *(
            (line, "mask has no option banded: conf/mask/banded.yaml exists")
            for line in (
                "mask=banded",
                "plan mask=banded",
                "check mask=banded",
                "compare mask=causal mask=banded",
                "judge mask=causal mask=banded",
                "cost mask=banded",
            )
        ),
        ("+experiment=mine", "experiment has no option mine: conf/experiment/mine.yaml exists"),
        ("report --now +experiment=mine", "experiment has no option mine: conf/experiment/mine.yaml exists"),
        ("status mine", "mine: unknown experiment: conf/experiment/mine.yaml exists"),
    ],
)
def test_error_names_the_flag_for_an_option_of_the_current_folder(refuse, line, problem):
    assert refuse(line) == f"attnlab: {problem}: add --config-dir conf\n"


@pytest.mark.parametrize(
    "line",
    [
        "cost mask=banded",
        "cost mask=causal --vs mask=banded",
        "corpus show mask=banded",
        "bench data mask=banded",
        "report --now +experiment=gqa_vs_mha mask=banded",
    ],
)
def test_verb_that_composes_overrides_takes_the_flag_and_rejects_hidden_options(own_conf, capfd, line):
    (own_conf / "mask" / "banded.yaml").write_text("window: ${divide:7,2}\n")
    for words, message in ((line, "7 is not divisible by 2"), (f"{line} heads=gqa", "heads=gqa is in")):
        assert entry.main(f"{words} --config-dir conf".split()) == 2
        assert message in capfd.readouterr().err


def test_attnlabs_own_conf_in_the_current_folder_gives_no_hint(own_conf, monkeypatch):
    assert own_options.format_own_option("mask", "banded", [CONF])
    assert not own_options.format_own_option("mask", "bandde", [CONF])
    assert not own_options.format_own_option("mask", "banded", [CONF, own_conf]), "--config-dir conf"
    assert not own_options.format_own_option("mask", "banded", [own_conf]), "--config-path conf"
    monkeypatch.setattr(own_options, "CONF", own_conf)
    assert not own_options.format_own_option("mask", "banded", [own_conf])
    assert not own_options.format_own_options()


def test_list_names_options_of_the_current_folder_without_the_flag(own_conf, run_main):
    def run_list(words):
        status, out, err = run_main(f"list {words}")
        return status, "banded" in out, err

    line = "not listed: experiment/mine, mask/banded in conf: add --config-dir conf\n"
    assert run_list("mask") == (0, False, line)
    assert run_list("mask --config-dir conf") == (0, True, "")
    for number in range(5):
        (own_conf / "mask" / f"own{number}.yaml").touch()
    names = "experiment/mine, mask/banded, mask/own0, mask/own1, mask/own2 and 2 more in conf:"
    assert run_list("heads")[2].startswith(f"not listed: {names}")


def test_hydra_flags_equal_those_in_hydras_help(run_main):
    status, out, _ = run_main("--hydra-help")
    flags = re.findall(r"^(--[a-z-]+)(?:,(-[a-z]+))? :", out, re.MULTILINE)
    assert (status, {flag for names in flags for flag in names if flag}) == (0, {*hydra_runner.HYDRA_FLAGS})


@pytest.mark.parametrize("line", ["--cfg job heads=four seed=3", "heads=four --cfg job seed=3"])
def test_cfg_job_prints_the_composed_config_wherever_the_flag_is(run_main, line):
    status, out, _ = run_main(line)
    assert (status, "n_heads: 4" in out, "seed: 3" in out) == (0, True, True)


@pytest.mark.parametrize("override", ["heads=two", "+experiment=heads"])
def test_hidden_option_of_a_config_folder_is_rejected_unless_it_is_equal(run_main, tmp_path, override):
    config = override.strip("+").replace("=", "/")
    file = tmp_path / "own" / f"{config}.yaml"
    file.parent.mkdir(parents=True)
    file.write_text((TOY / "conf" / f"{config}.yaml").read_text())
    (tmp_path / "own" / "config.yaml").write_text("mine: 1\n")
    line = f"--cfg job {override} --config-dir own"
    assert run_main(line)[0] == 0
    file.write_text(file.read_text() + "# mine\n")
    problem = f"{override.strip('+')} is in {TOY / 'conf'} too, which would be used: rename the file"
    assert run_main(line) == (2, "", f"attnlab: own/{config}.yaml: {problem}\n")


def test_config_path_may_be_relative(run_main, monkeypatch, capfd):
    monkeypatch.chdir(TOY)
    assert entry.main(["--cfg", "job", "--config-path", "conf", "heads=two"]) == 0
    assert "toy_variant" in capfd.readouterr().out


def test_plan_shows_every_run_and_trains_none(run_main, tmp_path):
    status, out, errors = run_main("plan +experiment=heads")
    assert status == 0, errors
    assert re.search(r"two +0 +[0-9a-f]{16} +160 +8 ", out)
    assert ("6 to train, 0 done" in out, "four - two: 0 finished pairs" in out) == (True, True)
    assert not (tmp_path / "trained").exists()


@pytest.mark.usefixtures("blank_charts")
def test_compare_runs_without_a_file_and_its_written_one_reuses_the_runs(run_main, tmp_path):
    status, out, errors = run_main("compare heads=two heads=four seed=0,1 margin=0.5")
    assert status == 0, errors
    [file] = (tmp_path / "reports").glob("two_vs_four_*/two_vs_four_*.yaml")
    assert out.splitlines()[0] == f"report: reports/{file.stem}/report.json"
    (tmp_path / "own" / "experiment").mkdir(parents=True)
    (tmp_path / "own" / "experiment" / file.name).write_text(file.read_text())
    status, out, errors = run_main(f"status --config-dir own +experiment={file.stem} --watch")
    assert (status, "4/4 runs (comparison)\n4 done\n" in out) == (0, True), errors
    report = file.with_name("report.md").read_text()
    assert "EXPLORATORY" not in report
    assert "attnlab compare heads=two heads=four seed=0,1 margin=0.5" in report


@pytest.mark.sampled(2)
@pytest.mark.parametrize("redirection", [">&-", "2>&-", ">&- 2>&-", "<&-"])
def test_closed_streams_do_not_matter(attnlab, redirection):
    command = f"{sys.executable} -m attnlab plan heads=two --config-path {TOY / 'conf'} {redirection}"
    settings = {"cwd": attnlab.folder, "env": attnlab.environment, "text": True}
    result = subprocess.run(["bash", "-c", command], capture_output=True, **settings)
    assert (result.returncode, result.stderr) == (0, "")


def test_missing_dependency_and_warnings_as_errors_are_one_line():
    script = "import sys; sys.modules['hydra'] = None; from attnlab.__main__ import main; "
    missing = run_module("-c", script + "sys.exit(main(['heads=gqa']))")
    warning = run_module("-m", "attnlab", "plan", "heads=gqa", PYTHONWARNINGS="error")
    for result, message in (
        (missing, f"attnlab: hydra is not installed for {sys.executable}: "),
        (warning, "PYTHONWARNINGS=error"),
    ):
        assert (result.returncode, result.stderr.count("\n")) == (2, 1)
        assert message in result.stderr


def test_working_directory_that_is_not_utf8_is_one_line(run_main, refuse, tmp_path, monkeypatch):
    folder = os.fsencode(tmp_path) + b"/caf\xe9"
    os.mkdir(folder)
    monkeypatch.chdir(os.fsdecode(folder))
    refuse("heads=two", "the name of the working directory ", "is not UTF-8 (byte 0xe9)")
    assert os.listdir(folder) == []
    assert run_main("--version") == (0, f"attnlab {__version__}\n", "")


def test_deleted_working_directory_is_one_line(refuse, tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    for line in ("list", "heads=two", "report x"):
        refuse(line, "the working directory was deleted: change to an existing folder\n")


def test_list_names_the_error_of_each_invalid_file_and_shows_the_others(run_main, tmp_path):
    head = "# @package _global_\n"
    files = {
        "twice": (f"{head}name: a\nname: b\n", "(duplicate key name (first on line 2): line 3)"),
        "empty": ("", "(the file is empty)"),
        "bullets": ("- a\n", "(the file contains a list: line 1)"),
        "bare": ("name: a\n", "(the first line must be # @package _global_: line 1)"),
        "tabbed": (f"{head}arms:\n\t- a\n", "(invalid YAML: line 3)"),
        "quoted": (f'{head}name: "a\n', "(invalid YAML: line 2)"),
        "broken": ("# Cost at S: nothing.\nquestion: [is it?]]\n", "(invalid YAML: line 2)"),
        "date": (f"{head}question: 2024-99-99\n", ""),
        "ring": (f"{head}question: &a [*a]\n", ""),
        "latin": (f"{head}question: où?".encode("latin-1"), ""),
        "whole": (f"{head}question: >-\n  Does it\n  stand?\n", "Does it stand?"),
    }
    for group in ("experiment", "mask"):
        (tmp_path / "own" / group / "folder.yaml").mkdir(parents=True)
        (tmp_path / "own" / group / "link.yaml").symlink_to("nowhere")
    for name, (text, _) in files.items():
        (tmp_path / "own" / "experiment" / f"{name}.yaml").write_bytes(
            text if name == "latin" else text.encode()
        )
    status, out, err = run_main("list experiments --config-dir own")
    assert (status, err, "schema" in out) == (0, "", False)
    lines = dict(line.strip().split(None, 1) for line in out.splitlines() if len(line.split()) > 1)
    assert [name for name, (_, text) in files.items() if not lines[name].endswith(text)] == []
    assert lines["folder"].startswith("(cannot be read")
    assert lines["gqa_vs_mha"].endswith("?")
