"""Results are typed: no string key looks up a field of a report, and one function reads each kind of file."""

import ast
from collections.abc import Iterator
from pathlib import Path

import attnlab

HOME = Path(attnlab.__file__).parent
PACKAGES = ("report", "cli", "sweep")
RESULTS = {  # variable names of results and their parts
    "answer", "budget_check", "claim", "comparison", "decision", "document", "effect", "ladder", "look",
    "report", "result", "tuning", "verdict",
}  # fmt: skip
ALLOWED = {  # lookups in unvalidated documents and experiment files
    "report/schema.py: document['schema']",
    "report/schema.py: document['verdict']",
    "report/ladder_schema.py: document['schema']",
    "cli/verbs/judge_configs.py: claim['says']",
    "cli/verbs/judge_configs.py: claim['threshold']",
    "report/verdicts/failures.py: claim['arm']",
    "report/verdicts/failures.py: claim['against']",
    "report/verdicts/failures.py: claim['contrast']",
    "sweep/plan/validate_claims.py: claim.get('contrast')",
    "sweep/plan/validate_claims.py: claim.get('against')",
    "sweep/plan/validate_claims.py: claim[key]",
    "sweep/plan/validate_claims.py: claim.get(key)",
    "sweep/plan/experiment_validation.py: claim['arm']",
    "sweep/plan/experiment_validation.py: claim['says']",
    "sweep/plan/experiment_validation.py: claim.get('arm')",
    "sweep/plan/experiment_validation.py: claim.get('against')",
}
READERS = {"report/schema.py", "report/ladder_schema.py"}


def test_no_string_key_looks_up_a_field_of_a_result() -> None:
    assert sorted({lookup for lookup in _find_string_lookups() if lookup not in ALLOWED}) == []


def _find_string_lookups() -> Iterator[str]:
    """Yield subscripts and `get` calls with a string key on variables named like a result."""
    for path in _list_modules():
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Subscript):
                owner, key = node.value, node.slice
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
                owner, key = node.func.value, node.args[0]
                if node.func.attr != "get":
                    continue
            else:
                continue
            is_text = isinstance(key, ast.Constant) and isinstance(key.value, str)
            name = (
                owner.attr
                if isinstance(owner, ast.Attribute)
                else owner.id
                if isinstance(owner, ast.Name)
                else ""
            )
            if is_text and name in RESULTS:
                yield f"{path.relative_to(HOME).as_posix()}: {ast.unparse(node)}"


def test_one_function_reads_each_kind_of_report() -> None:
    loads = {
        path.relative_to(HOME).as_posix()
        for path in _list_modules()
        if "Report.model_validate(document)" in path.read_text("utf-8")
    }
    assert loads == READERS
    for path in _list_modules():
        name = path.relative_to(HOME).as_posix()
        for line in path.read_text("utf-8").splitlines():
            reads = "read_json(" in line or "json.loads(" in line
            assert name in READERS or not (reads and ("report.json" in line or "LADDER" in line)), (
                f"{name}: {line}"
            )


def _list_modules() -> list[Path]:
    return [path for package in PACKAGES for path in sorted((HOME / package).rglob("*.py"))]
