"""Which way imports point, and that every name that a text holds instead of an import leads somewhere."""

import ast
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from hydra.utils import get_object
from importlinter.cli import lint_imports

ROOT = Path(__file__).parent.parent
OURS = re.compile(r"\b(?:attnlab|hydra_plugins)(?:\.[A-Za-z_]\w*)+\b")
YAMLS = sorted(path for folder in ("conf", "sweeps") for path in (ROOT / folder).rglob("*.yaml"))
SOURCES = sorted(path for folder in ("attnlab", "hydra_plugins") for path in (ROOT / folder).rglob("*.py"))


def test_imports_point_down(capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    status = lint_imports(config_filename=str(ROOT / "pyproject.toml"), no_cache=True)
    assert status == 0, capsys.readouterr().out


def in_yaml(node: Any) -> Iterator[str]:
    """The dotted names of a yaml's values: ours wherever they stand, and what Hydra is told to look up."""
    if isinstance(node, dict):
        target = node.get("_target_")
        if isinstance(target, str):
            yield target
            if target.startswith("hydra.utils.get_"):
                yield node["path"]
        node = list(node.values())
    if isinstance(node, list):
        for value in node:
            yield from in_yaml(value)
    if isinstance(node, str):
        yield from OURS.findall(node)


def in_python(tree: ast.Module) -> Iterator[str]:
    """Strings that are a dotted name of ours, with `:function` behind it or not; `f"{NAME}.more"` too."""
    named = {
        node.targets[0].id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        if isinstance(node.targets[0], ast.Name)
    }
    for node in ast.walk(tree):
        text = ""
        if isinstance(node, ast.Constant):
            text = node.value
        elif isinstance(node, ast.JoinedStr):
            parts = [
                part.value if isinstance(part, ast.Constant) else named.get(ast.unparse(part.value))
                for part in node.values
            ]
            text = "".join(map(str, parts)) if None not in parts else ""  # known only at run time
        if isinstance(text, str) and OURS.fullmatch(text.replace(":", ".")):
            yield text.replace(":", ".")


@cache
def names() -> dict[str, str]:
    """Name -> where it was seen first."""
    found: dict[str, str] = {}
    for path in YAMLS:
        content = yaml.load(path.read_text(), yaml.CSafeLoader)
        found |= {name: path.name for name in in_yaml(content) if name not in found}
    for path in SOURCES:
        content = ast.parse(path.read_text())
        found |= {name: path.name for name in in_python(content) if name not in found}
    return found


def fault(name: str) -> str:
    try:
        return "" if get_object(name) is not None else "None"
    except Exception as error:
        return str(error)


def test_a_name_in_a_text_leads_somewhere():
    faults = {name: (where, fault(name)) for name, where in names().items()}
    assert {name: told for name, told in faults.items() if told[1]} == {}


def test_names_are_found_where_they_can_stand():
    assert {
        "hydra.utils.get_class", "torch.nn.LSTM",  # what a yaml looks up
        "attnlab.model.pooling.pool_heads",  # within an override of an experiment
        "attnlab.training.run", "attnlab.cli.verbs.list.main",  # Python: a module, a function behind a colon
        "hydra_plugins.attnlab_sweep.launcher.PoolLauncher",  # an f-string
    } <= set(names())  # fmt: skip


WAYS = (
    "import {0}",
    "import {0}.more",
    "from {1} import {2}",
    "from {0} import more",
    "import {3}; {0}.more()",
)


def test_private_parts_of_libraries_are_found_however_they_are_imported():
    """Runs ruff on lines as of a file in `attnlab/`; one way left open would make the rule worth little."""
    rules = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["ruff"]["lint"]
    banned = rules["flake8-tidy-imports"]["banned-api"]
    assert {"hydra._internal", "wandb.sdk.lib", "torch._subclasses", "multiprocessing.util"} <= set(banned)
    ways = [(name, way) for name in banned for way in WAYS]
    lines = [
        way.format(name, *name.rpartition(".")[::2], name.partition(".")[0]).replace("; ", "\nif True: ")
        for name, way in ways
    ]
    command = [sys.executable, "-m", "ruff", "check", "--select=TID251", "--output-format=json"]
    found = subprocess.run(
        [*command, "--stdin-filename=attnlab/unwritten.py", "-"],
        cwd=ROOT, input="\n".join(lines), capture_output=True, text=True,
    )  # fmt: skip
    hit = {fault["location"]["row"] for fault in json.loads(found.stdout)}
    rows = {
        1 + sum(1 + line.count("\n") for line in lines[:n]) + lines[n].count("\n") for n in range(len(lines))
    }
    assert rows == hit
