"""`attnlab new`: the written files work unchanged, the docs show them, and nothing is overwritten."""

import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from sampling import full

from attnlab import testing
from attnlab.cli.main import main
from attnlab.cli.new import TEMPLATE_KINDS, new_command
from attnlab.cli.verbs.list import list_groups
from attnlab.config import CONF
from attnlab.testing import conformance
from attnlab.testing.invariants import variant

HOME = Path(__file__).parents[2]
NAMES = {
    "mask": "banded", "score": "fading",
    "heads": "angular", "mixer": "running_mean", "epilogue": "head_scale",
    "task": "came_first", "logger": "json_lines", "experiment": "sooner",
}  # fmt: skip
WRITING = (HOME / "docs" / "writing.md").read_text("utf-8")
# The change of each template after which docs/writing.md quotes a failing invariant.
BROKEN = {
    "mask": ("(kv_idx <= q_idx) & ", ""),
    "score": ("(q_idx - kv_idx)", "(kv_idx.max() - kv_idx)"),
    "heads": ("(rotate(k), v)", "(k, v)"),
    "mixer": ("self.gate(x_BTM)", "self.gate(x_BTM.mean(1, keepdim=True))"),
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A user's working directory; its modules and the parts built from them are dropped afterwards."""
    modules_before = {*sys.modules}
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in {*sys.modules} - modules_before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]
    for cached_builder in (variant._build_part, variant._build_prototype):
        cached_builder.cache_clear()


def run_new(kind, line=""):
    return main(["new", kind, *(line or NAMES[kind]).split()])


def list_files(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def run_written_tests(name, tmp_path):
    module = importlib.import_module(f"test_{name}")
    tests = [value for key, value in vars(module).items() if key.startswith("test_")]
    assert tests
    for test in tests:
        test(*[tmp_path] * ("tmp_path" in inspect.signature(test).parameters))


def test_every_kind_writes_its_files_and_prints_next_commands(folder, capsys):
    assert set(NAMES) == set(TEMPLATE_KINDS)
    written = set()
    for kind, name in NAMES.items():
        assert run_new(kind) == 0
        paths, _, next_commands = capsys.readouterr().out.partition("next:\n")
        assert paths.split() == [*new_command.render_files(kind, name)]
        written |= {*paths.split()}
        commands = [line for line in next_commands.splitlines() if " -m pytest " not in line]
        assert commands
        assert all("--config-dir conf" in line and f"={name}" in line for line in commands)
    assert list_files(folder) == written
    assert "sooner.py" not in written, "an experiment is a yaml"
    names = ["experiments", *list_groups((Path("conf"), CONF))]
    assert main(["list", "--config-dir", "conf", *names]) == 0
    output = capsys.readouterr().out
    for name in NAMES.values():
        assert re.search(rf"^ +{name} +[A-Z]\w* .*[.?]$", output, re.MULTILINE), f"{name} with its first line"
    assert main(["list", "--config-dir", "conf"]) == 0
    output = capsys.readouterr().out
    assert output.endswith(f"python -m attnlab new KIND NAME ({', '.join(TEMPLATE_KINDS)})\n")
    assert {*NAMES.values()} <= {*output.split()}


def test_the_claim_of_a_new_experiment_follows_its_margin(folder):
    run_new("experiment")
    experiment = OmegaConf.load(folder / "conf" / "experiment" / "sooner.yaml")
    assert [claim.threshold for claim in experiment.claims] == ["-margin"]


def test_written_files_pass_ruff(folder):
    for kind in NAMES:
        run_new(kind)
    for command in (["format", "--check"], ["check"]):
        line = [
            sys.executable,
            "-m",
            "ruff",
            *command,
            "--no-cache",
            "--config",
            HOME / "pyproject.toml",
            ".",
        ]
        result = subprocess.run(line, cwd=folder, capture_output=True, text=True)
        assert result.returncode == 0, result.stdout


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", ["mask", "score", "task", "logger"])
def test_written_files_pass_their_own_test(folder, kind):
    run_new(kind)
    run_written_tests(NAMES[kind], folder)


@pytest.mark.rare
@full
def test_all_written_tests_pass_under_plain_pytest(folder):
    for kind in NAMES:
        run_new(kind)
    line = [sys.executable, "-m", "pytest", "-q", "-W", "error"]
    result = subprocess.run(line, cwd=folder, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout
    assert "10 passed" in result.stdout


@pytest.mark.rare
def test_written_variants_combine_with_each_other_and_other_axes(folder):
    for kind in NAMES:
        run_new(kind)
    overrides = ["mask=banded", "score=fading", "heads=angular", "epilogue=head_scale"]
    for more in (["kernel=eager"], ["parametrization=mup"], ["decode=static"]):
        for line in (overrides, ["model=running_mean"]):
            outcomes = testing.check_variant([*line, *more], folder / "conf")
            assert not [str(each) for each in outcomes if each.status != "passed"]


@pytest.mark.parametrize("kind", BROKEN)
def test_broken_template_fails_the_invariant_quoted_in_the_docs(folder, kind):
    run_new(kind)
    name = NAMES[kind]
    text, (original, replacement) = Path(f"{name}.py").read_text(), BROKEN[kind]
    assert text.count(original) == 1
    Path(f"{name}.py").write_text(text.replace(original, replacement))
    section = WRITING.partition(f"`python -m attnlab new {kind} {name}`")[2]
    ((invariant, detail),) = re.findall(r"^> (\w+): (.*)$", section.partition("\n## ")[0], re.MULTILINE)
    assert f"`{replacement or original}`" in section
    (broken,) = testing.compose_variants(
        [f"{new_command.GROUP_BY_KIND.get(kind, kind)}={name}"], folder / "conf"
    )
    (outcome,) = conformance.evaluate_variant(broken, [invariant])
    assert outcome.status == "failed"
    assert detail in outcome.detail


def extract_code_blocks(text):
    return re.findall(r"^```(?:python|yaml)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def test_docs_show_exactly_the_written_files():
    rendered = [new_command.render_files(kind, NAMES[kind]) for kind in ("mask", "score", "heads", "mixer")]
    blocks = [text for texts in rendered for file, text in texts.items() if not file.startswith("test_")]
    assert extract_code_blocks(WRITING) == [*blocks, rendered[0]["test_banded.py"]]
    readme = (HOME / "README.md").read_text("utf-8").partition("## Add a variant of your own")[2]
    assert extract_code_blocks(readme) == blocks[:2]
    assert "python -m attnlab new mask banded\n" in readme
    for kind in TEMPLATE_KINDS:
        assert re.search(rf"^\| `{kind}` \|", WRITING, re.MULTILINE)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("masc mine", "unknown kind masc (nearest: mask"),
        ("mask class", "the name must be a lower-case identifier"),
        ("mask my-mask", "the name must be a lower-case identifier"),
        ("mask ../mine", "the name must be a lower-case identifier"),
        ("mask 'größe'", "the name must be a lower-case identifier"),
        ("mask Mine", "the name must be a lower-case identifier"),
        ("mask off", "the name must be a lower-case identifier"),
        ("mask causal", "has mask=causal"),
        ("score alibi", "has position=alibi"),
        ("task copy", "has data=copy"),
        ("heads torch", "`import torch` finds another module"),
        ("heads json", "`import json` finds another module"),
        ("heads nowhere_else", "`import test_nowhere_else` finds another module"),
        ("mask mine --into file", "file is not a folder"),
        ("mask", "the following arguments are required: NAME"),
    ],
)
def test_unusable_name_is_rejected_and_writes_nothing(folder, monkeypatch, refuse, line, message):
    (folder / "file").write_text("mine")
    other_folder = folder.parent / f"{folder.name}_elsewhere"
    other_folder.mkdir()
    (other_folder / "test_nowhere_else.py").touch()
    monkeypatch.syspath_prepend(str(other_folder))
    refuse(f"new {line}", message)
    assert list_files(folder) == {"file"}


@pytest.mark.parametrize("existing_path", ["banded.py", "conf/mask/banded.yaml", "test_banded.py"])
def test_existing_files_are_kept_and_nothing_is_written_partially(folder, refuse, existing_path):
    file = folder / existing_path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.symlink_to("gone") if existing_path == "test_banded.py" else file.write_text("mine")
    refuse("new mask banded", f"{existing_path} already exists, so nothing was written")
    assert [path for path in folder.rglob("*") if not path.is_dir()] == [file]
    assert file.is_symlink() or file.read_text() == "mine"


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_failed_write_leaves_no_file(folder, monkeypatch, error, capsys):
    open_path = Path.open

    def fail_on_test_file(path, *arguments, **settings):
        if path.name == "test_banded.py":
            raise error
        return open_path(path, *arguments, **settings)

    monkeypatch.setattr(Path, "open", fail_on_test_file)
    assert main(["new", "mask", "banded"]) == (2 if isinstance(error, OSError) else 130)
    assert not list_files(folder)
    assert isinstance(error, KeyboardInterrupt) or "no space left" in capsys.readouterr().err


def test_two_names_may_share_a_folder(folder, capsys):
    names = ("banded", "other_banded")
    for name in names:
        assert main(["new", "mask", name, "--into", "my own"]) == 0
    assert "next steps, after cd 'my own':" in capsys.readouterr().out
    files = {file for name in names for file in new_command.render_files("mask", name)}
    assert list_files(folder / "my own") == files


@pytest.mark.parametrize(
    ("kind", "name", "class_name"),
    [
        ("heads", "angular", "AngularHeads"),
        ("heads", "my_heads", "MyHeads"),
        ("heads", "heads", "HeadsHeads"),
        ("score", "bias", "BiasScore"),
        ("mixer", "a__2", "A2Mixer"),
    ],
)
def test_class_name_joins_name_and_kind(kind, name, class_name):
    assert f"class {class_name}(" in new_command.render_files(kind, name)[f"{name}.py"]
