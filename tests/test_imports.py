"""Import directions, and dotted names in strings and yaml that replace imports."""

import ast
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

import grimp
import yaml
from hydra.utils import get_object
from importlinter.cli import lint_imports

ROOT = Path(__file__).parent.parent
DOTTED_NAME = re.compile(r"\b(?:attnlab|hydra_plugins)(?:\.[A-Za-z_]\w*)+\b")
YAMLS = sorted(path for folder in ("conf", "sweeps") for path in (ROOT / folder).rglob("*.yaml"))
SOURCES = sorted(
    path for folder in ("attnlab", "benchmarks", "hydra_plugins") for path in (ROOT / folder).rglob("*.py")
)


def test_imports_point_down(capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    status = lint_imports(config_filename=str(ROOT / "pyproject.toml"), no_cache=True)
    assert status == 0, capsys.readouterr().out


def test_no_modules_import_each_other():
    """Imports inside functions and for annotations count too."""
    graph = grimp.build_graph("attnlab")
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    TopologicalSorter(imports).prepare()  # raises CycleError, which names the modules


def find_names_in_yaml(node: Any) -> Iterator[str]:
    """Yield the dotted names in yaml values: attnlab's anywhere, and all that Hydra resolves."""
    if isinstance(node, dict):
        target = node.get("_target_")
        if isinstance(target, str):
            yield target
            if target.startswith("hydra.utils.get_"):
                yield node["path"]
        node = list(node.values())
    if isinstance(node, list):
        for value in node:
            yield from find_names_in_yaml(value)
    if isinstance(node, str):
        yield from DOTTED_NAME.findall(node)


def find_names_in_python(tree: ast.Module) -> Iterator[str]:
    """Yield strings that are dotted names of attnlab, also with `:function` or as `f"{NAME}.more"`."""
    constants = {
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
                part.value if isinstance(part, ast.Constant) else constants.get(ast.unparse(part.value))
                for part in node.values
            ]
            text = "".join(map(str, parts)) if None not in parts else ""  # unknown before run time
        if isinstance(text, str) and DOTTED_NAME.fullmatch(text.replace(":", ".")):
            yield text.replace(":", ".")


@cache
def collect_names() -> dict[str, str]:
    """Collect names with the file where each appears first."""
    first_files: dict[str, str] = {}
    for path in YAMLS:
        content = yaml.load(path.read_text(), yaml.CSafeLoader)
        first_files |= {name: path.name for name in find_names_in_yaml(content) if name not in first_files}
    for path in SOURCES:
        content = ast.parse(path.read_text())
        first_files |= {name: path.name for name in find_names_in_python(content) if name not in first_files}
    return first_files


def find_fault(name: str) -> str:
    try:
        return "" if get_object(name) is not None else "None"
    except Exception as error:
        return str(error)


def test_dotted_names_in_strings_resolve():
    faults = {name: (file, find_fault(name)) for name, file in collect_names().items()}
    assert {name: entry for name, entry in faults.items() if entry[1]} == {}


def test_dotted_names_are_collected_from_yaml_and_python():
    assert {
        "hydra.utils.get_class", "torch.nn.LSTM",  # resolved from yaml
        "attnlab.model.pooling.pool_heads",  # in an override of an experiment
        "attnlab.training.run", "attnlab.cli.verbs.list.main",  # Python: a module, a function behind a colon
        "hydra_plugins.attnlab_sweep.launcher.PoolLauncher",  # an f-string
    } <= set(collect_names())  # fmt: skip


IMPORT_FORMS = (
    "import {0}",
    "import {0}.more",
    "from {1} import {2}",
    "from {0} import more",
    "import {3}; {0}.more()",
)


def test_private_library_modules_are_banned_in_every_import_form():
    """Run ruff on every import form, as in a file of `attnlab/`: one missing form would defeat the rule."""
    rules = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["ruff"]["lint"]
    banned = rules["flake8-tidy-imports"]["banned-api"]
    assert {"hydra._internal", "wandb.sdk.lib", "torch._subclasses", "multiprocessing.util"} <= set(banned)
    forms = [(name, form) for name in banned for form in IMPORT_FORMS]
    lines = [
        form.format(name, *name.rpartition(".")[::2], name.partition(".")[0]).replace("; ", "\nif True: ")
        for name, form in forms
    ]
    command = [sys.executable, "-m", "ruff", "check", "--select=TID251", "--output-format=json"]
    result = subprocess.run(
        [*command, "--stdin-filename=attnlab/unwritten.py", "-"],
        cwd=ROOT, input="\n".join(lines), capture_output=True, text=True,
    )  # fmt: skip
    reported_rows = {violation["location"]["row"] for violation in json.loads(result.stdout)}
    rows = {
        1 + sum(1 + line.count("\n") for line in lines[:n]) + lines[n].count("\n") for n in range(len(lines))
    }
    assert rows == reported_rows
