"""Names in the field's words: functions are verbs, module names are unique."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("attnlab", "benchmarks", "hydra_plugins")
FILES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))

# Participles that no suffix shows; verbs and nouns that end like one.
IRREGULAR = {
    "begun", "bought", "bound", "brought", "built", "chosen", "come", "cut", "done", "drawn", "driven",
    "fed", "felt", "found", "frozen", "given", "gone", "got", "grown", "had", "heard", "held", "hidden",
    "kept", "known", "laid", "led", "left", "lent", "lost", "made", "meant", "met", "paid", "put", "read",
    "run", "said", "seen", "sent", "set", "shown", "shut", "sold", "spent", "split", "spoken", "stood",
    "sunk", "taken", "thought", "told", "torn", "understood", "woken", "won", "worn", "written",
}  # fmt: skip
SAME_AS_THE_VERB = {"come", "cut", "put", "read", "run", "set", "shut", "split"}
NO_PARTICIPLES = {
    "bring", "embed", "encoding", "feed", "heading", "need", "padding", "ring", "seed", "speed", "string",
    "warning",
}  # fmt: skip

# A verb of the command line has a file of its name, next to the module that does its work.
MAY_REPEAT = {"__init__", "__main__", "corpus", "plan", "schema"}


def iterate_functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def is_bare_participle(name: str) -> bool:
    """Whether a whole name is one participle, as `told`, `_drawn` and `waiting` are."""
    word = name.strip("_")
    if not word.isalpha() or word in NO_PARTICIPLES:
        return False
    return word in IRREGULAR - SAME_AS_THE_VERB or bool(re.search(r"(ed|[a-z]{2}ing)$", word))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("told", True), ("_kept", True), ("joined", True), ("waiting", True), ("load_cached_checks", False),
        ("split", False), ("embed", False), ("forward", False), ("is_trained", False),
    ],
)  # fmt: skip
def test_a_bare_participle_is_recognized(name: str, expected: bool) -> None:
    assert is_bare_participle(name) == expected


def test_no_function_is_named_by_a_bare_participle() -> None:
    assert not [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"
        for path in FILES
        for node in iterate_functions(path)
        if is_bare_participle(node.name)
    ]


def test_module_names_are_unique() -> None:
    paths = defaultdict(list)
    for path in (ROOT / "attnlab").rglob("*.py"):
        if path.stem not in MAY_REPEAT:
            paths[path.stem].append(str(path.relative_to(ROOT)))
    assert {name: found for name, found in paths.items() if len(found) > 1} == {}
