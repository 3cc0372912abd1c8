"""`python -m attnlab new KIND NAME`: write a working module, yaml and test to start an extension from.

The files come from templates/. All paths are checked first, and nothing is overwritten.
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

from attnlab.cli.new import TEMPLATE_KINDS
from attnlab.cli.parser import PROGRAM
from attnlab.config import CONF
from attnlab.errors import InvalidConfig, describe_disk_full, format_suggestions

TEMPLATES = Path(__file__).parent / "templates"
GROUP_BY_KIND = {"mixer": "model", "task": "data"}  # config groups whose name differs from the kind
KINDS_WITH_OWN_TEST = ("task", "logger", "experiment")  # the conformance tests are about attention
RESERVED_WORDS = (
    "null",
    "true",
    "false",
    "yes",
    "no",
    "on",
    "off",
    "nan",
    "inf",
)  # reserved by YAML or Hydra


def main(options: argparse.Namespace) -> int:
    """Write the files, and print them with the commands to run next."""
    kind = options.kind
    name = options.name
    folder = Path(options.into)
    if kind not in TEMPLATE_KINDS:
        raise InvalidConfig(f"new: unknown kind {kind}{format_suggestions(kind, TEMPLATE_KINDS)}")
    _validate_name(kind, name)
    files = render_files(kind, name)
    _validate_paths(folder, files)
    _validate_module_names(kind, name, files)
    _write_files(folder, files)
    for file in files:
        print(folder / file)
    print("next:" if folder.resolve() == Path.cwd() else f"next steps, after cd {shlex.quote(options.into)}:")
    for command in list_next_commands(kind, name):
        print(f"  {command}")
    return 0


def render_files(kind: str, name: str) -> dict[str, str]:
    """Render all files of a name: path -> text. An experiment has no module."""
    group = GROUP_BY_KIND.get(kind, kind)
    suffix = kind.capitalize()
    title = "".join(part.capitalize() for part in name.split("_"))
    class_name = title if title.endswith(suffix) and title != suffix else title + suffix
    files = {} if kind == "experiment" else {f"{name}.py": f"{kind}.py"}
    files[f"conf/{group}/{name}.yaml"] = f"{kind}.yaml"
    files[f"test_{name}.py"] = f"{kind if kind in KINDS_WITH_OWN_TEST else 'variant'}.test"
    return {
        file: Template((TEMPLATES / f"{template}.txt").read_text("utf-8")).substitute(
            NAME=name, CLASS=class_name, GROUP=group
        )
        for file, template in files.items()
    }


def list_next_commands(kind: str, name: str) -> list[str]:
    """List the commands to run next in the folder; each accepts further overrides at its end."""
    config_flag = "--config-dir conf"
    value = f"{GROUP_BY_KIND.get(kind, kind)}={name}"
    test = f"python -m pytest test_{name}.py"
    if kind == "experiment":
        return [test, *(f"{PROGRAM} {verb}{config_flag} +{value} size=debug" for verb in ("plan ", ""))]
    checks = [] if kind in KINDS_WITH_OWN_TEST else [f"{PROGRAM} check {config_flag} {value}"]
    return [*checks, test, f"{PROGRAM} {config_flag} {value} size=debug"]


def _validate_name(kind: str, name: str) -> None:
    """Raise InvalidConfig if Python, YAML or Hydra reserve the name, or a shipped option has it."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or iskeyword(name) or name in RESERVED_WORDS:
        raise InvalidConfig(
            f"new {kind} {name}: the name must be a lower-case identifier that no module uses, as in "
            f"my_{kind}"
        )
    if shipped := sorted(CONF.glob(f"*/{name}.yaml")):
        raise InvalidConfig(
            f"new {kind} {name}: attnlab already has {shipped[0].parent.name}={name}: choose another name"
        )


def _validate_paths(folder: Path, files: Iterable[str]) -> None:
    for path in (folder / file for file in files):
        if os.path.lexists(path):
            raise InvalidConfig(f"{path} already exists, so nothing was written: choose another name")
        for parent in path.parents:
            if os.path.lexists(parent) and not parent.is_dir():
                raise InvalidConfig(
                    f"{parent} is not a folder, so nothing was written: move it, or use another --into"
                )


def _validate_module_names(kind: str, name: str, files: Iterable[str]) -> None:
    """Raise InvalidConfig if the name would shadow an importable module."""
    for module in (Path(file).stem for file in files if file.endswith(".py")):
        if module in sys.modules or find_spec(module):
            raise InvalidConfig(
                f"new {kind} {name}: `import {module}` finds another module: choose another name"
            )


def _write_files(folder: Path, contents: Mapping[str, str]) -> None:
    """Write all files, or none."""
    created: list[Path] = []
    try:
        for path, text in ((folder / file, text) for file, text in contents.items()):
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("x", encoding="utf-8") as stream:
                created.append(path)
                stream.write(text)
    except BaseException as error:
        for path in created:
            path.unlink(missing_ok=True)
        if not isinstance(error, OSError):
            raise
        problem = describe_disk_full(error) or f"{error.filename or folder}: {error.strerror}"
        raise InvalidConfig(f"{problem}; nothing was written") from error
