"""Every documented command works: it is run, at size debug where it trains; or planned where it needs more.

Surprising: all of them are run by one process in one folder, in the order of the pages: a later line may need
what an earlier one has made, and imports of torch cost more than a tiny experiment. Pictures are empty.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import documented
import pytest
import yaml
from documented import Command, classify, fill, shrink
from hydra.types import RunMode
from sampling import FULL, sample
from toys import plans_of_shipped, shipped

import attnlab
from attnlab.cli.commands import SUBJECTS, VERBS, parse
from attnlab.cli.flags import KINDS, SCHEMAS, SHELLS
from attnlab.cli.verbs.judge import ENDS
from attnlab.cli.verbs.list import groups
from attnlab.config import CONF
from attnlab.store.schema import Estimate

ROOT = documented.ROOT
COMMANDS = documented.collect()
OURS = [command for command in COMMANDS if command.program == "attnlab"]
OTHERS = [command for command in COMMANDS if command.program != "attnlab"]
REFERENCE = "kv_cache_bytes"  # a report whose claims are tried again within seconds
PLACEHOLDERS = {
    "NAME": "gqa_vs_mha", "KIND": "mask", "DIR": "conf", "myconf": "conf", "A": "heads=mha", "B": "heads=gqa",
    "FILE": "code.gz", "/data/runs": "runs", "old": "reports/A", "bash|zsh|fish": "zsh",
}  # fmt: skip
OF_VERBS = {
    "corpus": {"code": "pydocs", "...": "pydocs"},  # data=code: 130 MB of text are minutes
    "new": {"NAME": "dotted"},
    "bench": {"NAME": "decode"},
    "inspect": {"...": "the cat sat", "FOLDER": "FOLDER"},
    "generate": {"...": "the cat"},
}
TEXT = "the quick brown fox jumps over the lazy dog; pack my box with five dozen liquor jugs.\n" * 40
SLOW = {"bench", "claims", "compare", "judge", "ladder"}  # with tests of their own
QUICK = ("list", "schema", "complete", "new", "--version", "--help")
SESSION = """
import json, os, sys
from attnlab.__main__ import main
from attnlab.report.charts import drawing
empty = {True: ("png", ""), False: ("svg", "<svg></svg>")}
drawing._answers = lambda tasks: ([empty[task["label"] is None] for task in tasks], "")
for line in os.fdopen(int(sys.argv.pop())):
    status = main(json.loads(line))
    print(f"\\n== {status}", flush=True)
"""


def fill_words(command: Command, **more: str) -> tuple[str, ...]:
    verb = command.words[0] if command.words else ""
    return fill(command, PLACEHOLDERS | OF_VERBS.get(verb, {}) | more)


def list_parameters(commands):
    return [pytest.param(command, id=str(command)) for command in commands]


@pytest.mark.rare(sample=48)
@pytest.mark.parametrize("command", list_parameters(command for command in OURS if command.words))
def test_a_documented_command_can_be_read(command):
    how, words = classify(command), fill_words(command)
    if words[0] in VERBS:
        if "--help" not in words:
            assert parse(words[0], words[1:])
    elif how in ("trained", "planned") and "--config-dir" not in words:
        shipped().load_configuration("config", list(words), RunMode.MULTIRUN)


class Stub:
    """What the trainer answers where nothing is looked at."""

    def check(self, config):
        return Estimate(parameters=5, tokens=7, flops_per_token=3, kv_bytes_per_token=2, lr=0.1)


UNKNOWN = {  # what a stub cannot tell
    "tune": "null", "exchange": "null", "margin": "1", "claims": "[]", "held": "[]", "match": "none",
    "++unmatched": "[]",
}  # fmt: skip


@pytest.mark.rare
@pytest.mark.parametrize(
    "command", list_parameters(command for command in OURS if classify(command) == "planned")
)
def test_a_command_for_another_machine_is_planned(command):
    verb, *rest = fill_words(command)
    words = [*rest] if verb in VERBS else [verb, *rest]
    if verb == "corpus":
        words = [word for word in rest[1:] if not word.startswith("to=")]
    if verb == "bench":
        subject = __import__(f"attnlab.cli.bench.subjects.{rest[0]}", fromlist=["prepare"])
        assert subject.prepare([word for word in rest[1:] if not word.startswith("--")], None)
        return
    words = [f"+experiment={word}" if word.isidentifier() else word for word in words]
    if verb == "ladder" and not any(word.startswith("ladder=") for word in words):
        words.append("ladder=two_cores")
    given = {word.partition("=")[0] for word in words}
    if "+experiment" in given:
        [name] = (word.partition("=")[2] for word in words if word.startswith("+experiment="))
        arms = yaml.safe_load((CONF / "experiment" / f"{name}.yaml").read_text("utf-8"))["arms"][:2]
        unknown = UNKNOWN | {"arms": f"[{','.join(arms)}]"}  # without a match others may be one and the same
        unknown |= {} if verb == "ladder" or "ladder" in given else {"seed": "1"}
        words += [f"{key}={value}" for key, value in unknown.items() if key not in given]
    assert all(plan.runs for plan in plans_of_shipped(words, Stub()))


@pytest.mark.parametrize("command", list_parameters(OTHERS))
def test_a_command_of_another_program_names_what_there_is(command):
    if command.program == "make":
        targets = re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text("utf-8"), re.M)
        cards = re.findall(r"\bgpu-\d\b", (ROOT / "sweeps" / "gpu.mk").read_text("utf-8"))
        assert command.words[0] in {*targets, *cards}
    elif command.program == "pip":
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"][
            "optional-dependencies"
        ]
        wanted = re.findall(r"\[([a-z,]+)\]", " ".join(command.words))
        assert {extra for found in wanted for extra in found.split(",")} <= {*extras}
    elif command.program.startswith("attnlab."):
        assert find_spec(command.program) is not None
    else:
        assert command.program in ("python", *documented.OTHER_PROGRAMS)


class Session:
    """One process that runs command lines in a folder: `session(words)` is exit status and output."""

    def __init__(self, folder: Path) -> None:
        read, self._write = os.pipe()
        environment = {
            **os.environ, "HOME": str(folder), "XDG_CONFIG_HOME": str(folder / "config"),
            "WANDB_MODE": "disabled",
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        }  # fmt: skip
        self.process = subprocess.Popen(
            [sys.executable, "-c", SESSION, str(read)],
            cwd=folder, env=environment, pass_fds=[read], text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        os.close(read)

    def __call__(self, words) -> tuple[int | None, str]:
        os.write(self._write, (json.dumps([*words]) + "\n").encode())
        said = []
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("== "):
                return int(line.split()[1]), "".join(said)
            said.append(line)
        return None, "".join(said)  # the process is gone

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.close(self._write)
        self.process.communicate()


def find_failures(session: Session, lines) -> list[str]:
    """The lines (place, words, exit statuses that are fine) that ended otherwise, with their output."""
    found = []
    for place, words, fine in lines:
        status, said = session(words)
        if status not in fine:
            found.append(f"{place}: {' '.join(words)} ended with {status}:\n{said[-1500:]}")
    return found


def list_parser_lines() -> list[tuple[str, list[str], tuple[int, ...]]]:
    """Every subject of the verbs that have some, as the parser and the configs name them."""
    lines = [
        *(["list", group] for group in (*groups(), "experiments")),
        *(["schema", name] for name in SCHEMAS),
        *(["complete", shell] for shell in SHELLS),
        *(["new", kind, f"my_{kind}", "--into", "subjects"] for kind in KINDS),
        *([verb, "--help"] for verb in VERBS),
    ]
    return [("the parser", line, (0,)) for line in lines]


def test_every_quick_command_runs(tmp_path):
    quick = [
        command
        for command in OURS
        if command.words and command.words[0] in QUICK and "DIR" not in command.words
    ]
    lines = [
        (command.place, fill_words(command), (0,)) for command in quick if "--config-dir" not in command.words
    ]
    with Session(tmp_path) as session:
        assert find_failures(session, [*lines, *list_parser_lines()]) == []


def prepare(folder: Path) -> None:
    """What the pages take for granted: texts, a config of one's own, a folder of reports."""
    (folder / "book.txt").write_text(TEXT)
    for name in ("a", "b"):
        (folder / "texts" / name).mkdir(parents=True)
        (folder / "texts" / name / f"{name}.txt").write_text(TEXT)
    (folder / "mine.yaml").write_text("optim: {lr: 2.0e-3}\n")
    report = Path("reports") / "reference" / REFERENCE
    (folder / report).mkdir(parents=True)
    shutil.copy(ROOT / report / "report.json", folder / report)


def sample_commands(commands: list[Command]) -> list[Command]:
    """All of them, or few: those without a verb, which train, and those of verbs that take seconds."""
    alone = [one for one in commands if "--config-dir" not in one.words]  # others need what `new` has written
    chosen = [*sample((one for one in alone if not {*one.words[:1]} & {*VERBS}), 3)]
    for verb in sorted({*VERBS} - SLOW):
        chosen += sample((one for one in alone if one.words[:1] == (verb,)), 1)
    return commands if FULL else chosen


@pytest.mark.rare
@pytest.mark.timeout(2400)
def test_every_documented_command_runs(tmp_path, monkeypatch):
    prepare(tmp_path)
    found, ran = [], set()
    commands = [command for command in OURS if classify(command) in ("trained", "run")]
    commands = sample_commands(commands)
    commands.sort(key=lambda command: command.words[:1] == ("clean",))  # which removes what others look at
    with Session(tmp_path) as session:
        first = [["new", "heads", "mine"], ["model.n_layers=3", "size=debug", "logger=none"]]
        assert find_failures(session, [("first", words, (0,)) for words in first]) == []
        [spec] = (tmp_path / "runs").glob("*/spec.json")
        own = {"ID": spec.parent.name, "FOLDER": str(spec.parent)}
        for command in commands:
            words = fill_words(command, **own)
            lines = [(verb, *words[1:]) for verb in VERBS] if words[:1] == ("VERB",) else [words]
            if classify(command) == "trained":
                lines = [shrink(line) for line in lines]
            fine = tuple(status for status, _ in ENDS.values()) if words[:1] == ("judge",) else (0,)
            found += find_failures(session, [(command.place, line, fine) for line in lines])
            ran |= {line[0] for line in lines if line and "--help" not in line}
            reports = sorted((tmp_path / "reports").glob("gqa_vs_mha~*/"))
            for name in ("gqa_vs_mha", "A", "B"):
                if reports and not (tmp_path / "reports" / name).exists():
                    shutil.copytree(reports[0], tmp_path / "reports" / name)
    assert "\n\n".join(found) == ""
    if FULL:
        assert {*VERBS} - ran == {*documented.ELSEWHERE}, "a verb without a documented command that is run"
    monkeypatch.chdir(tmp_path)
    blocks = [
        block
        for page in ("README.md", "docs/commands.md")
        for block in re.findall(
            r"^```python\n(import attnlab\n.*?)^```", (ROOT / page).read_text("utf-8"), re.M | re.S
        )
    ]
    lines = [command.words[1] for command in OTHERS if command.program == "python"]
    assert len(blocks) == 2
    assert lines
    for code in (*blocks, *lines):
        exec(code, {"attnlab": attnlab})


def test_every_subject_of_bench_is_measured_by_a_test():
    text = (ROOT / "tests" / "cli" / "test_bench.py").read_text("utf-8")
    assert '@pytest.mark.parametrize("subject", SUBJECTS)' in text
    assert {path.stem for path in (ROOT / "attnlab/cli/bench/subjects").glob("[a-z]*.py")} == {*SUBJECTS}
