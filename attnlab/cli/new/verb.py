"""`python -m attnlab new KIND NAME`: a module, a yaml and a test that work as they are, to be changed.

What is written stands in templates/, by kind. All places are looked at first, and nothing is overwritten.
"""

import argparse
import os
import re
import shlex
import sys
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from keyword import iskeyword
from pathlib import Path
from string import Template

from attnlab.cli.flags import KINDS
from attnlab.cli.parser import PROGRAM
from attnlab.config import CONF
from attnlab.errors import Refused, nearest, no_space

TEMPLATES = Path(__file__).parent / "templates"
GROUPS = {"mixer": "model", "task": "data"}  # of conf/, where it is not called like the kind
NO_WORDS = ("null", "true", "false", "yes", "no", "on", "off", "nan", "inf")  # to YAML or to Hydra


def main(options: argparse.Namespace) -> int:
    """Writes the files, and prints them with the commands to run next."""
    kind = options.kind
    name = options.name
    folder = Path(options.into)
    if kind not in KINDS:
        raise Refused(f"new: no kind {kind}{nearest(kind, KINDS)}")
    _refuse_word(kind, name)
    written = texts(kind, name)
    _refuse_places(folder, written)
    _refuse_modules(kind, name, written)
    _write(folder, written)
    for file in written:
        print(folder / file)
    print("next:" if folder.resolve() == Path.cwd() else f"next, after cd {shlex.quote(options.into)}:")
    for command in commands(kind, name):
        print(f"  {command}")
    return 0


def texts(kind: str, name: str) -> dict[str, str]:
    """File -> its text, all that is written for a name. An experiment is a yaml and has no module."""
    group = GROUPS.get(kind, kind)
    ending = kind.capitalize()
    title = "".join(part.capitalize() for part in name.split("_"))
    named = title if title.endswith(ending) and title != ending else title + ending
    files = {} if kind == "experiment" else {f"{name}.py": f"{kind}.py"}
    files[f"conf/{group}/{name}.yaml"] = f"{kind}.yaml"
    files[f"test_{name}.py"] = f"{kind if kind in ('task', 'experiment') else 'variant'}.test"
    return {
        file: Template((TEMPLATES / f"{template}.txt").read_text("utf-8")).substitute(
            NAME=name, CLASS=named, GROUP=group
        )
        for file, template in files.items()
    }


def commands(kind: str, name: str) -> list[str]:
    """What to run next, in the folder; any of them takes more words at its end."""
    own = "--config-dir conf"
    value = f"{GROUPS.get(kind, kind)}={name}"
    test = f"python -m pytest test_{name}.py"
    if kind == "experiment":
        return [test, *(f"{PROGRAM} {verb}{own} +{value} size=debug" for verb in ("plan ", ""))]
    laws = [] if kind == "task" else [f"{PROGRAM} check {own} {value}"]
    return [*laws, test, f"{PROGRAM} {own} {value} size=debug"]


def _refuse_word(kind: str, name: str) -> None:
    """Refused where Python, YAML or Hydra would read something else, or a shipped value has the name."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or iskeyword(name) or name in NO_WORDS:
        raise Refused(f"new {kind} {name}: a name is one lower-case word that is free, as in my_{kind}")
    if shipped := sorted(CONF.glob(f"*/{name}.yaml")):
        raise Refused(f"new {kind} {name}: {shipped[0].parent.name}={name} ships already; take another name")


def _refuse_places(folder: Path, files: Iterable[str]) -> None:
    for path in (folder / file for file in files):
        if os.path.lexists(path):
            raise Refused(f"{path} is there already, nothing was written: take another name")
        for above in path.parents:
            if os.path.lexists(above) and not above.is_dir():
                raise Refused(f"{above} is no folder, nothing was written: move it, or give another --into")


def _refuse_modules(kind: str, name: str, files: Iterable[str]) -> None:
    """Refused where an import of that name finds, or would lose, something else."""
    for module in (Path(file).stem for file in files if file.endswith(".py")):
        if module in sys.modules or find_spec(module):
            raise Refused(f"new {kind} {name}: `import {module}` finds another module; take another name")


def _write(folder: Path, texts: Mapping[str, str]) -> None:
    """All of it, or none."""
    made: list[Path] = []
    try:
        for path, text in ((folder / file, text) for file, text in texts.items()):
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("x", encoding="utf-8") as stream:
                made.append(path)
                stream.write(text)
    except BaseException as error:
        for path in made:
            path.unlink(missing_ok=True)
        if not isinstance(error, OSError):
            raise
        problem = no_space(error) or f"{error.filename or folder}: {error.strerror}"
        raise Refused(f"{problem}; nothing was written") from error
