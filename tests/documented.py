"""Collection of every documented command line.

Sources are code blocks and inline code of the pages, help texts, docstrings, comments of the configs, recipes
of the Makefile, and launch files. New commands are collected without being listed. A line that `classify`
cannot classify is an error.
"""

import ast
import re
import shlex
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from attnlab.cli.commands import VERBS, build_parsers

ROOT = Path(__file__).parents[1]
PAGES = (
    "README.md",
    "docs/tutorial.md",
    "docs/commands.md",
    "AGENTS.md",
    "CONTRIBUTING.md",
)  # in this order, then the rest of docs/
PROGRAM = r"(?:python -m attnlab|attnlab)(?![\w./-])"
MODULE = re.compile(r"(?:\S*/)?python3? -m attnlab((?:\.\w+)*)$")
OPTIONAL = re.compile(r"(?<=\s)\[[^\]]*\](?: \.\.\.)?")  # as in [--json] of a usage

# Programs whose commands are not run -> the reason.
OTHER_PROGRAMS = {
    "git": "clones over a network",
    "pip": "installs from a network; the extra is looked up",
    "wandb": "needs an account",
    "python -m venv": "makes an environment; .ci/run does",
    "python -m pip": "installs from a network; .ci/run does",
    "cd": "enters the clone",
    "export": "sets credentials",
    ".": "enters the environment",
}
# Commands with a word that starts so are composed and planned, not started -> what they need.
REQUIREMENTS = {
    "size=M": "a GPU: hours on two cores",
    "size=L": "eight GPUs",
    "hydra/launcher=ray": "Ray",
    "hydra/launcher=slurm": "a SLURM cluster",
    "data=hub": "a network",
    "data=fineweb": "a network",
    "logger.mode=online": "a W&B login",
    "logger=[wandb,tensorboard]": "the extra tensorboard",
    "make gpu-": "a card",
    "ladder": "half an hour on two cores for all arms; a ladder of named arms is run",
}
# Commands that are only parsed, since other tests run them at their smallest setting.
PARSED_ONLY = {"bench": "minutes; tests/test_bench.py measures every subject with size=debug"}
BUCKET = "s3://"  # a word of commands that are only parsed, too: tests/sweep/test_work_bucket.py has one
SEED = 400  # the first one of gqa_vs_mha
ONE_SEED = {"seed": SEED, "tune": "null", "measure.timing": "false"}  # settings of an experiment
ONE_CORPUS = {"corpora": "[pydocs]", "compute_calibration": "null", "margin": 0.03}  # a ladder sets them
# Appended to commands that train, except keys that they set.
SMALL_SETTINGS = {
    "experiment": {"size": "debug", **ONE_SEED, **ONE_CORPUS},
    "ladder": {"trainer.max_steps": 2, **ONE_SEED},
    "compare": {"size": "debug", "seed": "0,1", "margin": 0.05, "measure.timing": "false"},
    "judge": {"size": "debug", "seed": "0,1,2", "measure.timing": "false"},
    "": {"size": "debug"},
}


@dataclass(frozen=True)
class Command:
    """A command line with its source and its words, including placeholders."""

    place: str
    words: tuple[str, ...]  # without the program
    program: str = "attnlab"  # or another program, or a module such as attnlab.stats.boundaries

    def __str__(self) -> str:
        return f"{self.place}: {self.program} {shlex.join(self.words)}"


def collect() -> list[Command]:
    """Collect all commands in the order of the pages, without repetitions."""
    pages = [*PAGES, *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")), "DESIGN.md"]
    commands: list[Command] = []
    for page in dict.fromkeys(pages):  # blocks of DESIGN.md hold no commands
        commands += read_page((ROOT / page).read_text("utf-8"), page)
    commands += [*read_helps(), *read_docstrings(), *read_configs(), *read_makefile(), *read_launch_files()]
    unique: dict[tuple[str, tuple[str, ...]], Command] = {}
    for command in commands:
        unique.setdefault((command.program, command.words), command)
    return list(unique.values())


def read_page(text: str, place: str) -> Iterator[Command]:
    """Yield the commands of a Markdown page: lines of shell blocks, and inline calls of attnlab or make."""
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
    """Yield commands in backticks; a command outside backticks is an error, since its end is ambiguous."""
    spans = r"(`+)(.+?)\1"
    for _, span in re.findall(spans, text, re.DOTALL):
        line = " ".join(span.split())
        if re.match(rf"{PROGRAM} |python -m attnlab$|make [a-z0-9-]+$", line):
            yield from read_shell(line, place, inline=True)
    bare = re.search(r"python -m attnlab.*", re.sub(spans, "", text, flags=re.DOTALL))
    assert bare is None, f"{place}: put this command into backticks: {bare and bare[0]}"


def read_shell(line: str, place: str, inline: bool = False) -> Iterator[Command]:
    """Yield the commands of a shell line; inline, a bare verb stands for its --help."""
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
            program, remaining = "attnlab", part[1:]
        elif module := MODULE.search(" ".join(part[:3])):
            program, remaining = f"attnlab{module[1]}", part[3:]
        elif part[:2] == ["python", "-c"] or part[0] in ("make", *OTHER_PROGRAMS):
            program, remaining = part[0], part[1:]
        elif " ".join(part[:3]) in OTHER_PROGRAMS:
            program, remaining = " ".join(part[:3]), part[3:]
        else:
            raise AssertionError(f"{place}: cannot classify: {shlex.join(part)}")
        is_mention = inline and program == "attnlab" and len(remaining) == 1 and remaining[0] in VERBS
        yield Command(place, (*remaining, *(["--help"] if is_mention else [])), program)


def read_helps() -> Iterator[Command]:
    """Yield the examples of the main help and of each verb's help."""
    main_parser, verbs = build_parsers()
    texts = {"--help": main_parser.format_help()} | {
        f"{name} --help": parser.format_help() for name, parser in verbs.items()
    }
    for name, text in texts.items():
        for line in re.findall(r"^  (python -m attnlab .*)$", text, re.M):
            yield from read_shell(re.split(r"\s{2,}", line)[0], name)


def read_docstrings() -> Iterator[Command]:
    """Yield commands in backticks of docstrings."""
    for path in sorted((ROOT / "attnlab").rglob("*.py")):
        if "templates" in path.parts:
            continue
        text = path.read_text("utf-8")
        if "attnlab" not in text:
            continue
        documented_nodes = (ast.Module, ast.ClassDef, ast.FunctionDef)
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, documented_nodes) and (docstring := ast.get_docstring(node)):
                yield from read_prose(OPTIONAL.sub("", docstring), str(path.relative_to(ROOT)))


def read_configs() -> Iterator[Command]:
    """Yield commands in backticks of comments in `conf/` and `sweeps/`."""
    files = [
        *(ROOT / "conf").rglob("*.yaml"),
        *(ROOT / "sweeps").glob("*.sh"),
        *(ROOT / "sweeps").glob("*.yaml"),
    ]
    for path in sorted(files):
        comments = re.findall(r"^#+ ?(?!!)(.*)$", path.read_text("utf-8"), re.M)
        yield from read_prose("\n".join(comments), str(path.relative_to(ROOT)))


def read_makefile() -> Iterator[Command]:
    """Yield the attnlab commands of the Makefile's targets."""
    targets = re.findall(r"^([a-z0-9-]+):.*##", (ROOT / "Makefile").read_text("utf-8"), re.M)
    cards = re.findall(r"^(gpu-\d):", (ROOT / "sweeps" / "gpu.mk").read_text("utf-8"), re.M)
    for target in (*targets, *cards):
        command = ["make", "--no-print-directory", "-nB", target]
        recipe = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        for line in recipe.splitlines():
            if match := re.search(r"-m attnlab (.*?)(?: > | && |$)", line):
                yield Command(f"make {target}", tuple(shlex.split(match[1])))


def read_launch_files() -> Iterator[Command]:
    """Yield the commands of the scripts in `sweeps/`."""
    for path in sorted((ROOT / "sweeps").glob("*.sh")):
        text = path.read_text("utf-8").replace("\\\n", " ")
        text = text.replace('"$@"', "").replace("${DEVICE:-NVIDIA H200}", "NVIDIA H200")
        for line in re.findall(r"^exec (?:srun )?(.*)$", text, re.M):
            yield from read_shell(line, str(path.relative_to(ROOT)))


def fill(command: Command, placeholders: Mapping[str, str]) -> tuple[str, ...]:
    """Replace placeholders in the words: whole words, or values after an equals sign."""
    words = []
    for word in command.words:
        key, _, value = word.partition("=")
        replacement = placeholders.get(word)
        words.append(
            replacement
            if replacement is not None
            else f"{key}={placeholders[value]}"
            if value in placeholders
            else word
        )
    return tuple(words)


def find_need(command: Command) -> str | None:
    """Return the missing requirement of a command; None if it can run here."""
    words = [command.place, *command.words]
    if any(word.startswith("arms=") for word in words):
        words = [word for word in words if not word.startswith("ladder")]
    return next(
        (reason for prefix, reason in REQUIREMENTS.items() for word in words if word.startswith(prefix)), None
    )


def classify(command: Command) -> str:
    """Classify a command of attnlab as `planned`, `parsed`, `trained` or `run` as written."""
    words = command.words
    verb = words[0] if words and words[0] in VERBS else None
    if "--help" in words or any(word.startswith("--cfg") for word in words):
        return "run"
    if find_need(command):
        return "planned"
    if verb in PARSED_ONLY or any(BUCKET in word for word in words):
        return "parsed"
    if verb == "judge" and any(word.endswith(".csv") for word in words):
        return "run"
    if verb in ("plan", "status", "ladder", "compare", "judge", "work") or "--now" in words:
        return "trained"
    if verb or not words or words[0] in ("--version", "--trust"):
        return "run"
    for previous_word, word in zip(("", *words), words, strict=False):
        if "=" not in word and "--config-dir" not in (previous_word, word):
            raise AssertionError(f"{command}: cannot classify {word}")
    return "trained"


def shrink(words: tuple[str, ...]) -> list[str]:
    """Reduce a command that trains to its smallest setting; its own keys are kept, except size=S."""
    words = tuple("size=debug" if word == "size=S" else word for word in words)
    keys_set = {word.lstrip("+").partition("=")[0] for word in words if not word.startswith("-")}
    is_experiment = "experiment" in keys_set or words[0] in ("plan", "status")
    settings = SMALL_SETTINGS[
        "ladder"
        if "ladder" in (words[0], *keys_set)
        else "experiment"
        if is_experiment
        else words[0]
        if words[0] in SMALL_SETTINGS
        else ""
    ]
    added = [
        f"{key}={value}"
        for key, value in settings.items()
        if key not in keys_set and not (key == "corpora" and "data" in keys_set)
    ]
    return [
        *words,
        *added,
        *(["--margin", "0.02"] if words[0] == "judge" and "--margin" not in words else []),
    ]
