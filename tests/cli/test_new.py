"""`attnlab new`: what it writes works as it is, the docs show exactly that, and nothing is lost by it."""

import importlib
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from sampling import full

from attnlab import testing
from attnlab.cli.commands import parse
from attnlab.cli.flags import KINDS
from attnlab.cli.main import main
from attnlab.cli.new import verb
from attnlab.cli.verbs.list import groups
from attnlab.config import CONF
from attnlab.testing import kit
from attnlab.testing.laws import variant

HOME = Path(__file__).parents[2]
NAMES = {
    "mask": "banded", "score": "fading", "heads": "cosine", "mixer": "running_mean", "epilogue": "head_scale",
    "task": "came_first", "experiment": "sooner",
}  # fmt: skip
WRITING = (HOME / "docs" / "writing.md").read_text("utf-8")
# What docs/writing.md has changed in a variant to show what the laws say then.
BROKEN = {
    "mask": ("(kv_pos <= q_pos) & ", ""),
    "score": ("(q_pos - kv_pos)", "(kv_pos.max() - kv_pos)"),
    "heads": ("(rotate(k), v)", "(k, v)"),
    "mixer": ("self.gate(x_BTM)", "self.gate(x_BTM.mean(1, keepdim=True))"),
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working directory of a user, whose modules are forgotten again, and what was built of them."""
    before = {*sys.modules}
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in {*sys.modules} - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]
    for built in (variant._part, variant._prototype):
        built.cache_clear()


def new(kind: str, *line: str) -> int:
    return verb.main(parse("new", [kind, *(line or (NAMES[kind],))]))


def files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def run_its_test(name: str) -> None:
    module = importlib.import_module(f"test_{name}")
    tests = [value for key, value in vars(module).items() if key.startswith("test_")]
    assert tests
    for test in tests:
        test()


def test_every_kind_has_its_files_and_says_what_to_run_next(folder, capsys):
    assert set(NAMES) == set(KINDS)
    for kind, name in NAMES.items():
        assert new(kind) == 0
        *written, told = capsys.readouterr().out.partition("next:\n")[::2]
        assert written[0].split() == [*verb.texts(kind, name)]
        own = [line for line in told.splitlines() if not line.startswith("  python -m pytest ")]
        assert own
        assert all("--config-dir conf" in line and f"={name}" in line for line in own)
    assert files(folder) == {file for kind, name in NAMES.items() for file in verb.texts(kind, name)}
    assert not list(folder.glob("sooner.py")), "an experiment is a yaml"
    assert main(["list", "--config-dir", "conf"]) == 0
    listed = capsys.readouterr().out
    assert listed.endswith("python -m attnlab new KIND NAME (" + ", ".join(KINDS) + ")\n")
    assert {*NAMES.values()} <= {*listed.split()}
    everything = ["experiments", *groups((Path("conf"), CONF))]
    assert main(["list", "--config-dir", "conf", *everything]) == 0
    listed = capsys.readouterr().out
    for name in NAMES.values():
        assert re.search(rf"^ +{name} +[A-Z]\w* .*[.?]$", listed, re.MULTILINE), f"{name} with its first line"


def test_what_is_written_is_in_the_style_that_ruff_keeps(folder):
    for kind in NAMES:
        new(kind)
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
        done = subprocess.run(line, cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("kind", ["mask", "score", "task"])
def test_what_is_written_passes_its_own_test(folder, kind):
    new(kind)
    run_its_test(NAMES[kind])


@pytest.mark.rare
@full
def test_all_that_is_written_passes_under_plain_pytest(folder):
    for kind in NAMES:
        new(kind)
    line = [sys.executable, "-m", "pytest", "-q", "-W", "error"]
    done = subprocess.run(line, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "9 passed" in done.stdout


@pytest.mark.rare
def test_all_of_it_goes_together_and_beside_other_kernels_and_widths(folder):
    for kind in NAMES:
        new(kind)
    together = ["mask=banded", "score=fading", "heads=cosine", "epilogue=head_scale"]
    for more in (["kernel=eager"], ["parametrization=mup"], ["decode=static"]):
        for line in (together, ["model=running_mean"]):
            outcomes = testing.check_variant([*line, *more], folder / "conf")
            assert not [str(each) for each in outcomes if each.status != "passed"]


@pytest.mark.parametrize("kind", BROKEN)
def test_a_law_says_of_a_broken_one_what_the_docs_say(folder, kind):
    new(kind)
    name = NAMES[kind]
    text, (right, wrong) = Path(f"{name}.py").read_text(), BROKEN[kind]
    assert text.count(right) == 1
    Path(f"{name}.py").write_text(text.replace(right, wrong))
    section = WRITING.partition(f"`python -m attnlab new {kind} {name}`")[2]
    ((law, says),) = re.findall(r"^> (\w+): (.*)$", section.partition("\n## ")[0], re.MULTILINE)
    assert f"`{wrong or right}`" in section
    (broken,) = testing.composed([f"{verb.GROUPS.get(kind, kind)}={name}"], folder / "conf")
    (outcome,) = kit.outcomes(broken, [law])
    assert outcome.status == "failed"
    assert says in outcome.detail


def shown(text: str) -> list[str]:
    return re.findall(r"^```(?:python|yaml)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def test_the_docs_show_what_is_written_and_nothing_else():
    whole = [verb.texts(kind, NAMES[kind]) for kind in ("mask", "score", "heads", "mixer")]
    blocks = [text for texts in whole for file, text in texts.items() if not file.startswith("test_")]
    assert shown(WRITING) == [*blocks, whole[0]["test_banded.py"]]
    readme = (HOME / "README.md").read_text("utf-8").partition("## Add a variant of your own")[2]
    assert shown(readme) == blocks[:2]
    assert "python -m attnlab new mask banded\n" in readme
    for kind in KINDS:
        assert re.search(rf"^\| `{kind}` \|", WRITING, re.MULTILINE)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (["masc", "mine"], "no kind masc (nearest: mask"),
        (["mask", "class"], "a name is one lower-case word"),
        (["mask", "my-mask"], "a name is one lower-case word"),
        (["mask", "../mine"], "a name is one lower-case word"),
        (["mask", "größe"], "a name is one lower-case word"),
        (["mask", "Mine"], "a name is one lower-case word"),
        (["mask", "off"], "a name is one lower-case word"),
        (["mask", "causal"], "mask=causal ships"),
        (["score", "alibi"], "position=alibi ships"),
        (["task", "copy"], "data=copy ships"),
        (["heads", "torch"], "`import torch` finds another module"),
        (["heads", "json"], "`import json` finds another module"),
        (["heads", "nowhere_else"], "`import test_nowhere_else` finds another module"),
        (["mask", "mine", "--into", "file"], "file is no folder"),
        (["mask"], "the following arguments are required: NAME"),
    ],
)
def test_a_line_that_would_write_what_cannot_be_used_is_refused_and_writes_nothing(
    folder, monkeypatch, capsys, line, told
):
    (folder / "file").write_text("mine")
    elsewhere = folder.parent / f"{folder.name}_elsewhere"
    elsewhere.mkdir()
    (elsewhere / "test_nowhere_else.py").touch()
    monkeypatch.syspath_prepend(str(elsewhere))
    assert find_spec("test_nowhere_else")
    assert main(["new", *line]) == 2
    said = capsys.readouterr().err
    assert told in said
    assert said.count("\n") == 1
    assert files(folder) == {"file"}


@pytest.mark.parametrize("there", ["banded.py", "conf/mask/banded.yaml", "test_banded.py"])
def test_nothing_is_overwritten_and_nothing_is_half_written(folder, capsys, there):
    (folder / "conf" / "mask").mkdir(parents=True)
    (folder / there).symlink_to("gone") if there == "test_banded.py" else (folder / there).write_text("mine")
    assert main(["new", "mask", "banded"]) == 2
    assert f"{there} is there already, nothing was written" in capsys.readouterr().err
    (only,) = [path for path in folder.rglob("*") if not path.is_dir()]
    assert only == folder / there
    assert only.is_symlink() or only.read_text() == "mine"


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_what_breaks_off_leaves_no_file(folder, monkeypatch, error, capsys):
    opened = Path.open

    def full(path, *arguments, **settings):
        if path.name == "test_banded.py":
            raise error
        return opened(path, *arguments, **settings)

    monkeypatch.setattr(Path, "open", full)
    assert main(["new", "mask", "banded"]) == (2 if isinstance(error, OSError) else 130)
    assert not files(folder)
    assert isinstance(error, KeyboardInterrupt) or "no space left" in capsys.readouterr().err


def test_a_folder_may_be_named_and_two_names_stand_beside_each_other(folder, capsys):
    assert new("mask", "banded", "--into", "my own") == 0
    assert "next, after cd 'my own':" in capsys.readouterr().out
    assert new("mask", "other_banded", "--into", "my own") == 0
    assert files(folder) == {
        f"my own/{file}" for name in ("banded", "other_banded") for file in verb.texts("mask", name)
    }


@pytest.mark.parametrize(
    ("kind", "name", "named"),
    [
        ("heads", "cosine", "CosineHeads"),
        ("heads", "my_heads", "MyHeads"),
        ("heads", "heads", "HeadsHeads"),
        ("score", "bias", "BiasScore"),
        ("mixer", "a__2", "A2Mixer"),
    ],
)
def test_a_class_is_called_by_its_name_and_its_kind(kind, name, named):
    assert f"class {named}(" in verb.texts(kind, name)[f"{name}.py"]
