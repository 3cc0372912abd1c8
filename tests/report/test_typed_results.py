"""Results are typed: no string looks up a field of a report or a claim, and one function reads each file."""

import ast
from collections.abc import Iterator
from pathlib import Path

import attnlab

HOME = Path(attnlab.__file__).parent
ROOMS = ("report", "cli", "sweep")
RESULTS = {  # what results and their parts are called
    "answer", "budget_check", "claim", "comparison", "decision", "document", "effect", "ladder", "look",
    "report", "result", "tuning", "verdict",
}  # fmt: skip
ALLOWED = {  # of a document before it is read, or of an experiment file
    "report/schema.py: document['schema']",
    "report/ladder.py: document['schema']",
    "cli/verbs/judge.py: claim['says']",
    "cli/verbs/judge.py: claim['threshold']",
    "report/verdicts/failures.py: claim['arm']",
    "report/verdicts/failures.py: claim['against']",
    "sweep/plan/answerable.py: claim.get('against')",
    "sweep/plan/answerable.py: claim[key]",
    "sweep/plan/answerable.py: claim.get(key)",
    "sweep/plan/experiment.py: claim['arm']",
    "sweep/plan/experiment.py: claim['says']",
    "sweep/plan/experiment.py: claim.get('arm')",
    "sweep/plan/experiment.py: claim.get('against')",
}
READERS = {"report/schema.py", "report/ladder.py"}


def test_no_string_looks_up_a_field_of_a_result() -> None:
    assert sorted({lookup for lookup in _lookups() if lookup not in ALLOWED}) == []


def _lookups() -> Iterator[str]:
    """Where a string in brackets, or given to `get`, looks up something of what is called like a result."""
    for path in _modules():
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Subscript):
                of, key = node.value, node.slice
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
                of, key = node.func.value, node.args[0]
                if node.func.attr != "get":
                    continue
            else:
                continue
            is_text = isinstance(key, ast.Constant) and isinstance(key.value, str)
            name = of.attr if isinstance(of, ast.Attribute) else of.id if isinstance(of, ast.Name) else ""
            if is_text and name in RESULTS:
                yield f"{path.relative_to(HOME).as_posix()}: {ast.unparse(node)}"


def test_one_function_reads_a_report_and_one_a_ladder() -> None:
    loads = {
        path.relative_to(HOME).as_posix()
        for path in _modules()
        if "Report.model_validate(document)" in path.read_text("utf-8")
    }
    assert loads == READERS
    for path in _modules():
        name = path.relative_to(HOME).as_posix()
        for line in path.read_text("utf-8").splitlines():
            reads = "read_json(" in line or "json.loads(" in line
            assert name in READERS or not (reads and ("report.json" in line or "LADDER" in line)), (
                f"{name}: {line}"
            )


def _modules() -> list[Path]:
    return [path for room in ROOMS for path in sorted((HOME / room).rglob("*.py"))]
