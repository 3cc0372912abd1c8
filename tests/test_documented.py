"""Every documented command works: it runs, at size=debug if it trains, or is planned if it needs more.

Surprising: one process runs all commands in one folder, in the order of the pages. Later commands may need
files of earlier ones, and importing torch costs more than a tiny experiment. Charts are blank.
"""

import json
import os
import random
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
from toys import plan_all_shipped, shipped_loader

import attnlab
from attnlab.cli.commands import BENCH_SUBJECTS, VERBS, parse_verb_line
from attnlab.cli.flags import SCHEMA_NAMES, SHELLS
from attnlab.cli.new import TEMPLATE_KINDS
from attnlab.cli.verbs.list import list_groups
from attnlab.cli.verdict_output import EXIT_BY_VERDICT
from attnlab.config import CONF
from attnlab.store.run_schema import RunEstimate

ROOT = documented.ROOT
COMMANDS = documented.collect()
ATTNLAB_COMMANDS = [command for command in COMMANDS if command.program == "attnlab"]
OTHER_COMMANDS = [command for command in COMMANDS if command.program != "attnlab"]
REFERENCE = "kv_cache_bytes"  # a report whose claims are rerun within seconds
PLACEHOLDERS = {
    "NAME": "gqa_vs_mha", "KIND": "mask", "DIR": "conf", "myconf": "conf", "A": "heads=mha", "B": "heads=gqa",
    "FILE": "code.gz", "/data/runs": "runs", "old": "reports/A", "bash|zsh|fish": "zsh",
}  # fmt: skip
VERB_PLACEHOLDERS = {
    "corpus": {"code": "pydocs", "...": "pydocs"},  # data=code reads 130 MB of text, which takes minutes
    "new": {"NAME": "dotted"},
    "bench": {"NAME": "decode"},
    "inspect": {"...": "the cat sat", "FOLDER": "FOLDER"},
    "generate": {"...": "the cat"},
}
WORDS = "the quick brown fox jumps over the lazy dog; pack my box with five dozen liquor jugs.\n"
TEXT = " ".join(random.Random(0).choices(WORDS.split(" "), k=700))
SLOW = {"bench", "claims", "compare", "judge", "ladder"}  # tested elsewhere
QUICK = ("list", "schema", "complete", "new", "--version", "--help")
SESSION = """
import json, os, sys
from attnlab.__main__ import main
from attnlab.report.charts import chart_renderer
empty = {True: ("png", ""), False: ("svg", "<svg></svg>")}
chart_renderer._run_renderer = lambda tasks: ([empty[task["label"] is None] for task in tasks], "")
for line in os.fdopen(int(sys.argv.pop())):
    status = main(json.loads(line))
    print(f"\\n== {status}", flush=True)
"""


def fill_words(command: Command, **placeholders: str) -> tuple[str, ...]:
    verb = command.words[0] if command.words else ""
    return fill(command, PLACEHOLDERS | VERB_PLACEHOLDERS.get(verb, {}) | placeholders)


def list_parameters(commands):
    return [pytest.param(command, id=str(command)) for command in commands]


@pytest.mark.rare(sample=48)
@pytest.mark.parametrize("command", list_parameters(command for command in ATTNLAB_COMMANDS if command.words))
def test_documented_command_parses(command):
    treatment, words = classify(command), fill_words(command)
    if words[0] in VERBS:
        if "--help" not in words:
            assert parse_verb_line(words[0], words[1:])
    elif treatment in ("trained", "planned") and "--config-dir" not in words:
        shipped_loader().load_configuration("config", list(words), RunMode.MULTIRUN)


class StubChecker:
    """A trainer with constant estimates."""

    def check(self, config):
        return RunEstimate(parameters=5, tokens=7, flops_per_token=3, kv_bytes_per_token=2, lr=0.1)


WITHOUT_ESTIMATES = {  # settings that need real estimates
    "tune": "null", "compute_calibration": "null", "margin": "1",
    "claims": "[]", "controlled": "[]", "match": "none",
    "++unmatched": "[]",
}  # fmt: skip


@pytest.mark.rare
@pytest.mark.parametrize(
    "command", list_parameters(command for command in ATTNLAB_COMMANDS if classify(command) == "planned")
)
def test_command_for_another_machine_is_planned(command):
    verb, *rest = fill_words(command)
    words = [*parse_verb_line(verb, rest).words] if verb in VERBS else [verb, *rest]
    if verb == "corpus":
        words = [word for word in rest[1:] if not word.startswith("to=")]
    if verb == "bench":
        subject = __import__(f"benchmarks.subjects.{rest[0]}", fromlist=["prepare"])
        assert subject.prepare([word for word in rest[1:] if not word.startswith("--")], None)
        return
    words = [f"+experiment={word}" if word.isidentifier() else word for word in words]
    if verb == "ladder" and not any(word.startswith("ladder=") for word in words):
        words.append("ladder=two_cores")
    keys_set = {word.partition("=")[0] for word in words}
    if "+experiment" in keys_set:
        [name] = (word.partition("=")[2] for word in words if word.startswith("+experiment="))
        arms = yaml.safe_load((CONF / "experiment" / f"{name}.yaml").read_text("utf-8"))["arms"][:2]
        settings = WITHOUT_ESTIMATES | {
            "arms": f"[{','.join(arms)}]"
        }  # without matching, other arms may be identical
        if verb == "ladder" or "ladder" in keys_set:
            del settings["margin"]
        else:
            settings["seed"] = "1"
        words += [f"{key}={value}" for key, value in settings.items() if key not in keys_set]
    assert all(plan.runs for plan in plan_all_shipped(words, StubChecker()))


@pytest.mark.parametrize("command", list_parameters(OTHER_COMMANDS))
def test_command_of_another_program_refers_to_existing_targets(command):
    if command.program == "make":
        targets = re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text("utf-8"), re.M)
        cards = re.findall(r"\bgpu-\d\b", (ROOT / "sweeps" / "gpu.mk").read_text("utf-8"))
        assert command.words[0] in {*targets, *cards}
    elif command.program == "pip":
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"][
            "optional-dependencies"
        ]
        extra_groups = re.findall(r"\[([a-z,]+)\]", " ".join(command.words))
        assert {extra for failures in extra_groups for extra in failures.split(",")} <= {*extras}
    elif command.program.startswith("attnlab."):
        assert find_spec(command.program) is not None
    else:
        assert command.program in ("python", *documented.OTHER_PROGRAMS)


class Session:
    """One process that runs command lines in a folder; `session(words)` returns exit status and output."""

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
        output = []
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("== "):
                return int(line.split()[1]), "".join(output)
            output.append(line)
        return None, "".join(output)  # the process has exited

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.close(self._write)
        self.process.communicate()


def find_failures(session: Session, lines) -> list[str]:
    """Run lines of (place, words, accepted exit statuses), and return the failures with their output."""
    failures = []
    for place, words, accepted_statuses in lines:
        status, output = session(words)
        if status not in accepted_statuses:
            failures.append(f"{place}: {' '.join(words)} ended with {status}:\n{output[-1500:]}")
    return failures


def list_parser_lines() -> list[tuple[str, list[str], tuple[int, ...]]]:
    """List a command for every group, schema, shell, kind and verb."""
    lines = [
        *(["list", group] for group in (*list_groups(), "experiments")),
        *(["schema", name] for name in SCHEMA_NAMES),
        *(["complete", shell] for shell in SHELLS),
        *(["new", kind, f"my_{kind}", "--into", "subjects"] for kind in TEMPLATE_KINDS),
        *([verb, "--help"] for verb in VERBS),
    ]
    return [("the parser", line, (0,)) for line in lines]


def test_every_quick_command_runs(tmp_path):
    quick_commands = [
        command
        for command in ATTNLAB_COMMANDS
        if command.words and command.words[0] in QUICK and "DIR" not in command.words
    ]
    lines = [
        (command.place, fill_words(command), (0,))
        for command in quick_commands
        if "--config-dir" not in command.words
    ]
    with Session(tmp_path) as session:
        assert find_failures(session, [*lines, *list_parser_lines()]) == []


def write_assumed_files(folder: Path) -> None:
    """Write the files that the pages assume: texts, a user config, a folder of reports."""
    (folder / "book.txt").write_text(TEXT)
    for name, shift in (("base", 0.0), ("a", 0.02), ("b", -0.1)):
        losses = [3.28 + shift * (1 + seed % 3 / 10) + 0.01 * (seed % 4) for seed in range(8)]
        rows = "".join(f"{seed},{loss}\n" for seed, loss in enumerate(losses))
        (folder / f"{name}.csv").write_text(f"seed,val_loss\n{rows}")
    page = (ROOT / "docs" / "module_checks.md").read_text("utf-8")
    [module] = re.findall(r"^```python\n(# my_attention\.py\n.*?)^```", page, re.M | re.S)
    (folder / "my_attention.py").write_text(module)
    page = (ROOT / "docs" / "kv_cache_cost.md").read_text("utf-8")
    [config] = re.findall(r"^```json\n(.*?)^```", page, re.M | re.S)
    (folder / "config.json").write_text(config)
    for name in ("a", "b"):
        (folder / "texts" / name).mkdir(parents=True)
        (folder / "texts" / name / f"{name}.txt").write_text(TEXT)
    (folder / "mine.yaml").write_text("optim: {lr: 2.0e-3}\n")
    report = Path("reports") / "reference" / REFERENCE
    (folder / report).mkdir(parents=True)
    shutil.copy(ROOT / report / "report.json", folder / report)


def sample_commands(commands: list[Command]) -> list[Command]:
    """Sample commands that train and commands of quick verbs; all of them in a full run."""
    standalone = [
        command for command in commands if "--config-dir" not in command.words
    ]  # others need files of `new`
    sampled = [*sample((command for command in standalone if not {*command.words[:1]} & {*VERBS}), 3)]
    for verb in sorted({*VERBS} - SLOW):
        sampled += sample((command for command in standalone if command.words[:1] == (verb,)), 1)
    return commands if FULL else sampled


@pytest.mark.rare
@pytest.mark.timeout(2400)
def test_every_documented_command_runs(tmp_path, monkeypatch):
    write_assumed_files(tmp_path)
    failures, verbs_run = [], set()
    commands = [command for command in ATTNLAB_COMMANDS if classify(command) in ("trained", "run")]
    commands = sample_commands(commands)
    commands.sort(key=lambda command: command.words[:1] == ("clean",))  # it removes files that others need
    with Session(tmp_path) as session:
        setup_lines = [["new", "heads", "mine"], ["model=llama", "size=debug", "logger=none"]]
        assert find_failures(session, [("first", words, (0,)) for words in setup_lines]) == []
        [spec] = (tmp_path / "runs").glob("*/spec.json")
        run_placeholders = {"ID": spec.parent.name, "FOLDER": str(spec.parent)}
        for command in commands:
            words = fill_words(command, **run_placeholders)
            lines = [(verb, *words[1:]) for verb in VERBS] if words[:1] == ("VERB",) else [words]
            if classify(command) == "trained":
                lines = [shrink(line) for line in lines]
            accepted_statuses = (
                tuple(status for status, _ in EXIT_BY_VERDICT.values()) if words[:1] == ("judge",) else (0,)
            )
            failures += find_failures(session, [(command.place, line, accepted_statuses) for line in lines])
            verbs_run |= {line[0] for line in lines if line and "--help" not in line}
            reports = sorted((tmp_path / "reports").glob("gqa_vs_mha~*/"))
            for name in ("gqa_vs_mha", "A", "B"):
                if reports and not (tmp_path / "reports" / name).exists():
                    shutil.copytree(reports[0], tmp_path / "reports" / name)
    assert "\n\n".join(failures) == ""
    if FULL:
        assert {*VERBS} - verbs_run == {*documented.PARSED_ONLY}, (
            "a verb without a documented command that is run"
        )
    monkeypatch.chdir(tmp_path)
    blocks = [
        block
        for page in ("README.md", "docs/commands.md")
        for block in re.findall(
            r"^```python\n(import attnlab\n.*?)^```", (ROOT / page).read_text("utf-8"), re.M | re.S
        )
    ]
    lines = [command.words[1] for command in OTHER_COMMANDS if command.program == "python"]
    assert len(blocks) == 2
    assert lines
    for code in (*blocks, *lines):
        exec(code.replace("runs/ID", f"runs/{spec.parent.name}"), {"attnlab": attnlab})


def test_every_bench_subject_has_a_test():
    text = (ROOT / "tests" / "test_bench.py").read_text("utf-8")
    assert '@pytest.mark.parametrize("subject", BENCH_SUBJECTS)' in text
    assert {path.stem for path in (ROOT / "benchmarks/subjects").glob("[a-z]*.py")} == {*BENCH_SUBJECTS}
