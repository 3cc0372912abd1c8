"""The entry point: help, list, one-line errors, and commands over the toy config."""

import os
import re
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
    """`run_main(...)`: run a line over the toy config in this process; return status, stdout and stderr."""
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
    ("line", "message"),
    [
        (["--multirn", "size=debug"], "unknown flag --multirn (nearest: --multirun"),
        (["--trus=mine", "size=debug"], "unknown flag --trus (nearest: --trust"),
        (["-z", "size=debug"], "unknown flag -z"),
        (["--size=debug"], "unknown flag --size: write size=debug: see"),
        (["plan", "gqa_vs_mha", "--size", "debug"], "plan: unknown flag --size: write size=debug: see"),
        (
            ["plan", "--experiment", "gqa_vs_mha"],
            "plan: unknown flag --experiment: write +experiment=gqa_vs_",
        ),
        (["clean", "--size", "debug"], "clean: unknown flag --size (nearest: "),
        (["-config-dir=conf", "size=debug"], "unknown flag -config-dir (nearest: --config-dir"),
        (["hydra.launcher=null"], "Hydra launcher is not configured: check the overrides of hydra"),
        (["seed=range(1,nan)"], "seed=range(1,nan): give the range in finite numbers"),
        (["model.dim=range(1,nan)"], "model.dim=range(1,nan): give the range in finite numbers"),
        (["optim.lr=abc"], "optim.min_lr is computed from optim.lr: give a number\n"),
        (["plan", "model.dim=abc"], "model.ffn_width is computed from model.dim: "),
        (
            ["plan", "heads=mla", "layers=cross_layer"],
            "layers with shared keys and values (layers=cross_layer, yoco) read those of grouped heads, but ",
        ),
    ],
)
def test_unreadable_line_is_one_line_that_names_the_written_key(line, message, capfd):
    assert entry.main(line) == 2
    out, err = capfd.readouterr()
    assert (out, err.count("\n"), err.startswith(f"attnlab: {message}")) == ("", 1, True)


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
    keys = {
        "heads", "optim.lr", "tune.lr", "optim.warmup", "protocol.steps", "measurement.steps",
        "trainer.max_steps", "model.mixer.steps_per_token", "model.n_heads", "model.mixer.n_heads",
        "model.heads.n_kv_heads",
    }  # fmt: skip
    assert hydra_errors.format_key_suggestions(name, keys) == f" (nearest: {nearest})"


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
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=CONF.parent, check=False
    )
    assert result.returncode == 0, result.stderr
    assert [line for line in result.stdout.splitlines() if line.startswith("==")] == [
        f"== {line} 0 []" for line in lines
    ]
    assert "Cost at S: 16 to 88 runs" in result.stdout


@pytest.mark.parametrize("name", VERBS)
def test_every_verb_is_importable_and_its_help_has_options_and_two_examples(run_main, name):
    assert find_spec(VERBS[name].entry_point.partition(":")[0]) is not None
    status, out, _ = run_main(name, "-h")
    assert status == 0
    assert out.startswith(f"usage: python -m attnlab {name} ")
    examples = out[out.index("examples:") : out.index("options:")]
    assert examples.count(f"\n  python -m attnlab {name}") == 2
    assert all(f"\n    {key.name}= " in out for key in VERBS[name].keys)
    assert run_main(name, "--version") == (0, f"attnlab {__version__}\n", "")


def test_version_is_attnlabs(run_main):
    assert run_main("--version") == (0, f"attnlab {__version__}\n", "")


def test_help_has_a_line_for_every_verb_and_group():
    help_text = entry.format_main_help()
    for name in VERBS:
        assert re.search(rf"^    {name} +\w", help_text, re.MULTILINE)
    assert re.search(r"^  heads +differential, gla, gqa", help_text, re.MULTILINE)


def test_file_that_is_not_yaml_hides_no_other_from_the_list(run_main, tmp_path):
    folder = tmp_path / "own" / "experiment"
    folder.mkdir(parents=True)
    (folder / "broken.yaml").write_text("# Cost at S: nothing.\nquestion: [is it?]]\nname: x")
    (folder / "latin.yaml").write_bytes("question: où?".encode("latin-1"))
    (folder / "whole.yaml").write_text("question: >-\n  Does it\n  stand?")
    status, out, _ = run_main("list", "experiments", "--config-dir", "own")
    assert status == 0
    lines = [line.strip() for line in out.splitlines()]
    assert any(line.startswith("broken ") and "(invalid YAML: line 2)" in line for line in lines)
    assert any(line.startswith("latin ") for line in lines)
    assert any(line.startswith("whole ") and line.endswith("Does it stand?") for line in lines)
    assert any(line.startswith("gqa_vs_mha ") and line.endswith("?") for line in lines)
    assert "schema" not in out


@pytest.mark.sampled(10)
@pytest.mark.parametrize(
    ("line", "message"),
    [
        (["lst"], "unknown command lst (nearest: list, cost)"),
        (["show", "gqa_vs_mha"], "unknown command show (available: list, plan, "),
        (["run", "gqa_vs_mha"], "unknown command run: write python -m attnlab +experiment=gqa_vs_mha\n"),
        (["train", "heads=two"], "unknown command train: write python -m attnlab heads=two"),
        (["gqa_vs_mha"], "unknown command gqa_vs_mha: write python -m attnlab +experiment=gqa_vs_mha\n"),
        (["heads=two", "plan"], "the verb comes first: write python -m attnlab plan heads=two"),
        (["status"], "status needs an experiment"),
        (["status", "heads=two", "--wach"], "status: unknown flag --wach (nearest: --watch"),
        (["plan", "heads=two", "--config-dir"], "plan: argument -cd/--config-dir: expected one argument"),
        (["list", "hed"], "list hed: not a group or experiment (nearest: heads, schedule)"),
        (["plan", "gqa_vs_mah"], "gqa_vs_mah: unknown experiment (nearest: gqa_vs_mha"),
        (["plan", "gqa_vs.mah"], "gqa_vs.mah: unknown experiment (nearest: gqa_vs_mha"),
        (["work", "gqa_vs_mah"], "gqa_vs_mah: unknown experiment (nearest: gqa_vs_mha"),
        (
            ["plan", "gqa_vs_mha", "mla_vs_gqa"],
            "+experiment=gqa_vs_mha +experiment=mla_vs_gqa: a command takes one experiment: remove the",
        ),
        (["heads=two", "heads"], "heads: not an override: write key=value\n"),
        (["--cfg", "foo", "heads=two"], "--cfg foo: must be one of job, hydra, all\n"),
        (["heads=two", "-c="], "-c : must be one of job, hydra, all\n"),
        (["ladder", "gqa_vs_mah"], "gqa_vs_mah: unknown experiment (nearest: gqa_vs_mha"),
        (["list", "--config-dir", "nowhere"], "--config-dir nowhere: folder not found: give an existing one"),
        (["report", "a", "--diff", "b", "c"], "report needs a folder"),
        (["report", "a", "--config-dir", "conf"], "report --config-dir needs --now: add it, or remove"),
        (["report", "--diff", "a"], "report: argument --diff: expected 2 arguments"),
        (["schema", "spce"], "unknown schema spce (nearest: spec)"),
        (["compare", "heads=two"], "compare needs two or more arms"),
        (["heads=tow"], "heads has no option tow (nearest: two)"),
        (["head=two"], "unknown key head (nearest: heads"),
        (["frobnicate=1"], "unknown key frobnicate: to add it, write +frobnicate=...\n"),
        (["model.widht=3"], "unknown key model.widht (nearest: model.width"),
        (["model={widht: 3}"], "unknown key model.widht (nearest: model.width"),
        (["metrics=x"], "metrics is a key of experiments: add +experiment=NAME, or write +metrics=... if"),
        (["texts=[code]"], "unknown key texts (texts was renamed to corpora)"),
        (["heads=one,tow"], "heads has no option tow (nearest: two)"),
        (["+experiment=haeds"], "experiment has no option haeds (nearest: heads"),
        (["experiment=heads"], "write +experiment=... to select one"),
        (["+experiment=heads", "arms=[tow]"], "heads has no arm tow (nearest: two, twin"),
        (["seed=a"], "seed=a: seeds must be integers"),
        (["model.width=[3"], "model.width=[3"),
        (["model.width=0"], "model.width=0"),
        (["model.width=???"], "model.width has no value"),
        (["heads=two", "parent=../x"], "parent=../x: a path is not allowed"),
        (["+experiment=heads", "name=../x"], "name='../x' is not a valid folder name"),
        (
            ["heads=two", "++sweep.show=wacht"],
            "sweep.show=wacht (nearest: watch): use python -m attnlab plan",
        ),
        (["sweep.slots=0"], "sweep.slots must be the number of concurrent runs"),
        (["sweep.max_time=-1"], "sweep.max_time must be seconds"),
        (["paths.runs=/proc/nowhere"], "paths.runs=/proc/nowhere is not writable"),
        (["--config-dir", "nowhere", "heads=two"], "nowhere"),
        (["-m", "--cfg", "job", "heads=two"], "Only one of"),
    ],
)
def test_invalid_command_is_one_line_with_exit_2_and_starts_nothing(run_main, line, message, tmp_path):
    status, _, errors = run_main(*line)
    assert status == 2
    assert errors.startswith("attnlab: ")
    assert errors.count("\n") == 1
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


@pytest.mark.parametrize(
    ("line", "problem", "file"),
    [
        (["mask=banded"], "mask has no option banded", "mask/banded"),
        (["plan", "mask=banded"], "mask has no option banded", "mask/banded"),
        (["check", "mask=banded"], "mask has no option banded", "mask/banded"),
        (["compare", "mask=causal", "mask=banded"], "mask has no option banded", "mask/banded"),
        (["judge", "mask=causal", "mask=banded"], "mask has no option banded", "mask/banded"),
        (["cost", "mask=banded"], "mask has no option banded", "mask/banded"),
        (["+experiment=mine"], "experiment has no option mine", "experiment/mine"),
        (["report", "--now", "+experiment=mine"], "experiment has no option mine", "experiment/mine"),
        (["status", "mine"], "mine: unknown experiment", "experiment/mine"),
    ],
)
@pytest.mark.usefixtures("own_conf")
def test_error_names_the_flag_for_an_option_of_the_current_folder(capfd, line, problem, file):
    assert entry.main(line) == 2
    hint = f"{problem}: conf/{file}.yaml exists: add --config-dir conf\n"
    assert capfd.readouterr().err == f"attnlab: {hint}"


@pytest.mark.parametrize(
    "line",
    [
        ["cost", "mask=banded"],
        ["cost", "mask=causal", "--vs", "mask=banded"],
        ["corpus", "show", "mask=banded"],
        ["bench", "data", "mask=banded"],
        ["report", "--now", "+experiment=gqa_vs_mha", "mask=banded"],
    ],
)
def test_verb_that_composes_overrides_takes_the_flag(own_conf, capfd, line):
    (own_conf / "mask" / "banded.yaml").write_text("window: ${divide:7,2}\n")
    assert entry.main([*line, "--config-dir", "conf"]) == 2
    assert "7 is not divisible by 2" in capfd.readouterr().err


@pytest.mark.usefixtures("own_conf")
@pytest.mark.parametrize("verb", [["cost"], ["corpus", "show"], ["bench", "decode"]])
def test_verb_rejects_an_option_that_attnlabs_would_hide(capfd, verb):
    assert entry.main([*verb, "heads=gqa", "--config-dir", "conf"]) == 2
    assert "heads=gqa is in" in capfd.readouterr().err


def test_attnlabs_own_conf_in_the_current_folder_gives_no_hint(own_conf, monkeypatch):
    assert own_options.format_own_option("mask", "banded", [CONF])
    assert not own_options.format_own_option("mask", "bandde", [CONF])
    assert not own_options.format_own_option("mask", "banded", [CONF, own_conf]), "--config-dir conf"
    assert not own_options.format_own_option("mask", "banded", [own_conf]), "--config-path conf"
    monkeypatch.setattr(own_options, "CONF", own_conf)
    assert not own_options.format_own_option("mask", "banded", [own_conf])
    assert not own_options.format_own_options()


def test_list_names_options_of_the_current_folder_without_the_flag(own_conf, capfd):
    line = "not listed: experiment/mine, mask/banded in conf: add --config-dir conf\n"
    assert entry.main(["list", "mask"]) == 0
    output = capfd.readouterr()
    assert output.err == line
    assert "banded" not in output.out
    assert entry.main(["list", "mask", "--config-dir", "conf"]) == 0
    output = capfd.readouterr()
    assert output.err == ""
    assert "banded" in output.out
    for number in range(5):
        (own_conf / "mask" / f"own{number}.yaml").touch()
    assert entry.main(["list", "heads"]) == 0
    assert capfd.readouterr().err.startswith(
        "not listed: experiment/mine, mask/banded, mask/own0, mask/own1, mask/own2 and 2 more in conf:"
    )


def test_hydra_flags_equal_those_in_hydras_help(run_main):
    status, out, _ = run_main("--hydra-help")
    assert status == 0
    flags_shown = re.findall(r"^(--[a-z-]+)(?:,(-[a-z]+))? :", out, re.MULTILINE)
    assert {flag for names in flags_shown for flag in names if flag} == {*hydra_runner.HYDRA_FLAGS}


def test_cfg_job_prints_the_composed_config(run_main):
    status, out, _ = run_main("--cfg", "job", "heads=four")
    assert status == 0
    assert "n_heads: 4" in out


@pytest.mark.parametrize("override", ["heads=two", "+experiment=heads"])
def test_hidden_option_of_a_config_folder_is_rejected_unless_it_is_equal(run_main, tmp_path, override):
    config = override.strip("+").replace("=", "/")
    file = tmp_path / "own" / f"{config}.yaml"
    file.parent.mkdir(parents=True)
    file.write_text((TOY / "conf" / f"{config}.yaml").read_text())
    (tmp_path / "own" / "config.yaml").write_text("mine: 1\n")
    line = ("--cfg", "job", override, "--config-dir", "own")
    assert run_main(*line)[0] == 0
    file.write_text(file.read_text() + "# mine\n")
    problem = f"{override.strip('+')} is in {TOY / 'conf'} too, which would be used: rename the file"
    assert run_main(*line) == (2, "", f"attnlab: own/{config}.yaml: {problem}\n")


def test_config_path_may_be_relative(monkeypatch, capfd):
    monkeypatch.chdir(TOY)
    monkeypatch.setattr(sys, "argv", ["attnlab"])
    assert entry.main(["--cfg", "job", "--config-path", "conf", "heads=two"]) == 0
    assert "toy_variant" in capfd.readouterr().out


def test_plan_shows_every_run_and_trains_none(run_main, tmp_path):
    status, out, errors = run_main("plan", "+experiment=heads")
    assert status == 0, errors
    assert sum(line.endswith("to train") for line in out.splitlines()) == 6
    assert re.search(r"two +0 +[0-9a-f]{16} +160 +8 ", out)
    assert "6 to train, 0 done" in out
    assert "four - two: 0 finished pairs" in out
    assert not (tmp_path / "trained").exists()


@pytest.mark.usefixtures("blank_charts")
def test_compare_runs_without_a_file_and_its_written_one_reuses_the_runs(run_main, tmp_path):
    status, out, errors = run_main("compare", "heads=two", "heads=four", "seed=0,1", "margin=0.5")
    assert status == 0, errors
    [file] = (tmp_path / "reports").glob("two_vs_four_*/two_vs_four_*.yaml")
    name = file.stem
    assert out.splitlines()[0] == f"report: reports/{name}/report.json"
    written = file.read_text()
    (tmp_path / "own" / "experiment").mkdir(parents=True)
    (tmp_path / "own" / "experiment" / file.name).write_text(written)
    arguments = ("--config-dir", "own", f"+experiment={name}")
    status, out, errors = run_main("status", *arguments, "--watch")
    assert status == 0, errors
    assert "4/4 runs (comparison)\n4 done\n" in out
    report = (tmp_path / "reports" / name / "report.md").read_text()
    assert "EXPLORATORY" not in report
    assert "attnlab compare heads=two heads=four seed=0,1 margin=0.5" in report


def test_bug_shows_its_traceback(run_main, monkeypatch):
    monkeypatch.setattr(entry, "run_hydra", lambda line: {}["missing"])
    status, _, errors = run_main("heads=two")
    assert status == 1
    assert "Traceback" in errors


@pytest.mark.sampled(2)
@pytest.mark.parametrize("redirection", [">&-", "2>&-", ">&- 2>&-", "<&-"])
def test_closed_streams_do_not_matter(redirection, tmp_path):
    command = f"{sys.executable} -m attnlab plan heads=two --config-path {TOY / 'conf'} {redirection}"
    environment = {**os.environ, "PYTHONPATH": f"{TOY}{os.pathsep}{CONF.parent}"}
    result = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, cwd=tmp_path, env=environment, check=False
    )
    assert (result.returncode, result.stderr) == (0, "")


def test_warnings_as_errors_are_rejected(tmp_path):
    environment = {**os.environ, "PYTHONWARNINGS": "error"}
    line = [sys.executable, "-m", "attnlab", "plan", "heads=gqa"]
    result = subprocess.run(
        line, capture_output=True, text=True, cwd=CONF.parent, env=environment, check=False
    )
    assert result.returncode == 2
    assert "PYTHONWARNINGS=error" in result.stderr
    assert result.stderr.count("\n") == 1


def test_flags_may_stand_anywhere(run_main):
    status, out, _ = run_main("heads=two", "--cfg", "job", "seed=3")
    assert (status, "seed: 3" in out) == (0, True)


def test_working_directory_that_is_not_utf8_is_one_line(run_main, tmp_path, monkeypatch):
    folder = os.fsencode(tmp_path) + b"/caf\xe9"
    os.mkdir(folder)
    monkeypatch.chdir(os.fsdecode(folder))
    status, _, errors = run_main("heads=two")
    assert status == 2
    assert errors.startswith("attnlab: the name of the working directory ")
    assert "is not UTF-8 (byte 0xe9)" in errors
    assert errors.count("\n") == 1
    assert os.listdir(folder) == []
    assert run_main("--version")[0] == 0


def test_deleted_working_directory_is_one_line(run_main, tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    error = "attnlab: the working directory was deleted: change to an existing folder\n"
    for line in (["list"], ["heads=two"], ["report", "x"]):
        assert run_main(*line) == (2, "", error)


def test_missing_dependency_is_one_line():
    script = "import sys; sys.modules['hydra'] = None; from attnlab.__main__ import main; "
    line = [sys.executable, "-c", script + "sys.exit(main(['heads=gqa']))"]
    result = subprocess.run(line, capture_output=True, text=True, cwd=CONF.parent, check=False)
    assert result.returncode == 2
    assert result.stderr.startswith(f"attnlab: hydra is not installed for {sys.executable}: ")
    assert result.stderr.count("\n") == 1


def test_list_names_the_error_of_each_invalid_file_and_shows_the_others(run_main, tmp_path):
    user_experiments = tmp_path / "own" / "experiment"
    user_experiments.mkdir(parents=True)
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
    for name, help_text in files.items():
        (user_experiments / f"{name}.yaml").write_text(help_text)
    (user_experiments / "folder.yaml").mkdir()
    (user_experiments / "link.yaml").symlink_to("nowhere")
    (tmp_path / "own" / "mask").mkdir()
    (tmp_path / "own" / "mask" / "gone.yaml").symlink_to("nowhere")
    (tmp_path / "own" / "mask" / "folder.yaml").mkdir()
    status, out, err = run_main("list", "experiments", "--config-dir", "own")
    assert (status, err) == (0, "")
    message = dict(line.strip().split(None, 1) for line in out.splitlines() if len(line.split()) > 1)
    assert message["whole"] == "Is it there?"
    assert message["twice"] == "(duplicate key name (first on line 2): line 3)"
    assert message["empty"] == "(the file is empty)"
    assert message["bullets"] == "(the file contains a list: line 1)"
    assert message["bare"] == "(the first line must be # @package _global_: line 1)"
    assert message["tabbed"] == "(invalid YAML: line 3)"
    assert message["quoted"] == "(invalid YAML: line 2)"
    assert message["folder"].startswith("(cannot be read")
    assert message["gqa_vs_mha"].endswith("?")
