"""Every command line that the documentation shows, found in its place: blocks and inline code of the pages,
help texts, docstrings, comments of the configs, recipes of the Makefile, launch files.

A new one is found without being listed. A line that `classify` cannot classify is an error.
"""

import ast
import re
import shlex
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from attnlab.cli.commands import VERBS, parsers

ROOT = Path(__file__).parents[1]
PAGES = (
    "README.md",
    "docs/tutorial.md",
    "docs/commands.md",
    "AGENTS.md",
    "CONTRIBUTING.md",
)  # in this order, then:
PROGRAM = r"(?:python -m attnlab|attnlab)(?![\w./-])"
MODULE = re.compile(r"(?:\S*/)?python3? -m attnlab((?:\.\w+)*)$")
OPTIONAL = re.compile(r"(?<=\s)\[[^\]]*\](?: \.\.\.)?")  # [--json] in a usage

# The first word of a shell line that is not attnlab's -> why nothing of it is tried here.
OTHER_PROGRAMS = {
    "git": "clones over a network",
    "pip": "installs from a network; the extra is looked up",
    "wandb": "needs an account",
    "python -m venv": "makes an environment; .ci/run does",
    "python -m pip": "installs from a network; .ci/run does",
    "cd": "enters the clone",
    ".": "enters the environment",
}
# A command with this word (or an option that begins with it) is composed and planned, and nothing is started.
NOT_HERE = {
    "size=M": "a GPU: hours on two cores",
    "size=L": "eight GPUs",
    "hydra/launcher=ray": "Ray",
    "hydra/launcher=slurm": "a SLURM cluster",
    "data=hub": "a network",
    "data=fineweb": "a network",
    "logger.mode=online": "a W&B login",
    "logger=[wandb,tensorboard]": "the extra tensorboard",
    "make gpu-": "a card",
    "ladder": "half an hour on two cores, four sizes of all arms; where it names two arms it is run",
}
# These are parsed alone: other tests run them at their smallest setting.
ELSEWHERE = {"bench": "minutes; tests/cli/test_bench.py measures every subject with size=debug"}
SEED = 400  # the first one of gqa_vs_mha
ONE_TEXT = {  # of an experiment: one seed on one text, with nothing to tune or to calibrate
    "seed": SEED,
    "texts": "[pydocs]",
    "tune": "null",
    "exchange": "null",
    "margin": 0.03,
    "measure.timing": "false",
}
# Appended where a command trains, unless it sets the key itself.
SMALL = {
    "experiment": {"size": "debug", **ONE_TEXT},
    "ladder": {"trainer.max_steps": 2, **ONE_TEXT},
    "compare": {"size": "debug", "seed": "0,1", "margin": 0.05, "measure.timing": "false"},
    "judge": {"size": "debug", "seed": "0,1,2", "measure.timing": "false"},
    "": {"size": "debug"},
}


@dataclass(frozen=True)
class Command:
    """A command line: where it stands, and its words with their placeholders."""

    place: str
    words: tuple[str, ...]  # those of attnlab, without the program; else the whole line
    program: str = "attnlab"  # or the first word, or a module of ours such as attnlab.stats.boundaries

    def __str__(self) -> str:
        return f"{self.place}: {self.program} {shlex.join(self.words)}"


def collect() -> list[Command]:
    """All of them in the order of the pages, of equal ones the first."""
    pages = [*PAGES, *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")), "DESIGN.md"]
    found: list[Command] = []
    for page in dict.fromkeys(pages):  # DESIGN.md has no commands in its blocks
        found += read_page((ROOT / page).read_text("utf-8"), page)
    found += [*read_helps(), *read_docstrings(), *read_configs(), *read_makefile(), *read_launch_files()]
    first: dict[tuple[str, tuple[str, ...]], Command] = {}
    for command in found:
        first.setdefault((command.program, command.words), command)
    return list(first.values())


def read_page(text: str, place: str) -> Iterator[Command]:
    """Commands of a Markdown page: lines of shell blocks, and inline calls of attnlab or make."""
    prose, block, language, lines = [], [], None, text.splitlines()
    for line in lines:
        fence = re.fullmatch(r"```(\w*)", line.strip())
        if fence and language is None:
            language, block = fence[1], []
        elif fence:
            if place != "DESIGN.md" and language in ("", "sh", "bash", "console"):
                for shell in "\n".join(block).replace("\\\n", " ").splitlines():
                    yield from read_shell(shell, place)
            language = None
        elif language is None:
            prose.append(line)
        else:
            block.append(line)
    assert language is None, f"{place}: a block is not closed"
    yield from read_prose("\n".join(prose), place)


def read_prose(text: str, place: str) -> Iterator[Command]:
    """Commands in backticks; one outside of backticks has no end that could be found."""
    spans = r"(`+)(.+?)\1"
    for _, span in re.findall(spans, text, re.DOTALL):
        line = " ".join(span.split())
        if re.match(rf"{PROGRAM} |python -m attnlab$|make [a-z0-9-]+$", line):
            yield from read_shell(line, place, inline=True)
    bare = re.search(r"python -m attnlab.*", re.sub(spans, "", text, flags=re.DOTALL))
    assert bare is None, f"{place}: put this command into backticks: {bare and bare[0]}"


def read_shell(line: str, place: str, inline: bool = False) -> Iterator[Command]:
    """The commands of a shell line; in prose a verb alone is a mention of it, as is a usage."""
    try:
        words = shlex.split(line, comments=not inline)
    except ValueError as error:
        raise AssertionError(f"{place}: {line}: {error}") from error
    parts: list[list[str]] = [[]]
    for word in words:
        if word in ("&&", ";"):
            parts.append([])
        else:
            parts[-1].append(word)
    for part in filter(None, parts):
        part = part[: part.index(">")] if ">" in part else part
        if part[0] == "attnlab":
            program, rest = "attnlab", part[1:]
        elif module := MODULE.search(" ".join(part[:3])):
            program, rest = f"attnlab{module[1]}", part[3:]
        elif part[:2] == ["python", "-c"] or part[0] in ("make", *OTHER_PROGRAMS):
            program, rest = part[0], part[1:]
        elif " ".join(part[:3]) in OTHER_PROGRAMS:
            program, rest = " ".join(part[:3]), part[3:]
        else:
            raise AssertionError(f"{place}: cannot classify: {shlex.join(part)}")
        mentioned = inline and program == "attnlab" and len(rest) == 1 and rest[0] in VERBS
        yield Command(place, (*rest, *(["--help"] if mentioned else [])), program)


def read_helps() -> Iterator[Command]:
    """The examples of the help texts, of the whole and of each verb."""
    whole, verbs = parsers()
    texts = {"--help": whole.format_help()} | {
        f"{name} --help": one.format_help() for name, one in verbs.items()
    }
    for name, text in texts.items():
        for line in re.findall(r"^  (python -m attnlab .*)$", text, re.M):
            yield from read_shell(re.split(r"\s{2,}", line)[0], name)


def read_docstrings() -> Iterator[Command]:
    """Commands in backticks of docstrings."""
    for path in sorted((ROOT / "attnlab").rglob("*.py")):
        if "templates" in path.parts:
            continue
        text = path.read_text("utf-8")
        if "attnlab" not in text:
            continue
        kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, kinds) and (said := ast.get_docstring(node)):
                yield from read_prose(OPTIONAL.sub("", said), str(path.relative_to(ROOT)))


def read_configs() -> Iterator[Command]:
    """Commands in backticks of the comments in `conf/` and `sweeps/`."""
    files = [
        *(ROOT / "conf").rglob("*.yaml"),
        *(ROOT / "sweeps").glob("*.sh"),
        *(ROOT / "sweeps").glob("*.yaml"),
    ]
    for path in sorted(files):
        comments = re.findall(r"^#+ ?(?!!)(.*)$", path.read_text("utf-8"), re.M)
        yield from read_prose("\n".join(comments), str(path.relative_to(ROOT)))


def read_makefile() -> Iterator[Command]:
    """What the targets run of attnlab."""
    targets = re.findall(r"^([a-z0-9-]+):.*##", (ROOT / "Makefile").read_text("utf-8"), re.M)
    cards = re.findall(r"^(gpu-\d):", (ROOT / "sweeps" / "gpu.mk").read_text("utf-8"), re.M)
    for target in (*targets, *cards):
        command = ["make", "--no-print-directory", "-nB", target]
        made = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        for line in made.splitlines():
            if found := re.search(r"-m attnlab (.*?)(?: > | && |$)", line):
                yield Command(f"make {target}", tuple(shlex.split(found[1])))


def read_launch_files() -> Iterator[Command]:
    """The commands of the scripts in `sweeps/`."""
    for path in sorted((ROOT / "sweeps").glob("*.sh")):
        text = path.read_text("utf-8").replace("\\\n", " ")
        text = text.replace('"$@"', "").replace("${DEVICE:-NVIDIA H200}", "NVIDIA H200")
        for line in re.findall(r"^exec (.*)$", text, re.M):
            yield from read_shell(line, str(path.relative_to(ROOT)))


def fill(command: Command, placeholders: Mapping[str, str]) -> tuple[str, ...]:
    """The words, each placeholder replaced: a whole word, or what stands behind an equals sign."""
    words = []
    for word in command.words:
        key, _, value = word.partition("=")
        whole = placeholders.get(word)
        words.append(
            whole if whole is not None else f"{key}={placeholders[value]}" if value in placeholders else word
        )
    return tuple(words)


def find_need(command: Command) -> str | None:
    """What a command needs that is not here; None where it can be run."""
    words = [command.place, *command.words]
    if any(word.startswith("arms=") for word in words):
        words = [word for word in words if not word.startswith("ladder")]
    return next((why for begin, why in NOT_HERE.items() for word in words if word.startswith(begin)), None)


def classify(command: Command) -> str:
    """The treatment of a command of attnlab: `planned`, `parsed`, `trained` or `run` as written."""
    words = command.words
    verb = words[0] if words and words[0] in VERBS else None
    if "--help" in words or any(word.startswith("--cfg") for word in words):
        return "run"
    if find_need(command):
        return "planned"
    if verb in ELSEWHERE:
        return "parsed"
    if verb in ("plan", "status", "ladder", "compare", "judge") or "--now" in words:
        return "trained"
    if verb or not words or words[0] in ("--version", "--trust"):
        return "run"
    for before, word in zip(("", *words), words, strict=False):
        if "=" not in word and "--config-dir" not in (before, word):
            raise AssertionError(f"{command}: cannot classify {word}")
    return "trained"


def shrink(words: tuple[str, ...]) -> list[str]:
    """The words of a command that trains, at its smallest setting; its own keys stay, but for size=S."""
    words = tuple("size=debug" if word == "size=S" else word for word in words)
    given = {word.lstrip("+").partition("=")[0] for word in words if not word.startswith("-")}
    experiment = "experiment" in given or words[0] in ("plan", "status")
    chosen = SMALL[
        "ladder"
        if "ladder" in (words[0], *given)
        else "experiment"
        if experiment
        else words[0]
        if words[0] in SMALL
        else ""
    ]
    more = [
        f"{key}={value}"
        for key, value in chosen.items()
        if key not in given and not (key == "texts" and "data" in given)
    ]
    return [*words, *more, *(["--margin", "0.02"] if words[0] == "judge" and "--margin" not in words else [])]
