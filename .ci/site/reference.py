"""Reference pages generated from the source: verbs from parsers, options from yaml, Python from docstrings.

Python modules are parsed, not imported. A class is shown as a stub of its signatures, with the first
paragraph of each docstring.
"""

import ast
import inspect
import os
import re
from pathlib import Path

# The API for analyzing results and writing variants: file -> names; without names, all public ones.
PUBLIC: dict[str, dict[str, tuple[str, ...]]] = {
    "Results": {"attnlab/report/frames.py": ("load", "ResultFrames", "ReportFrames", "StoreFrames")},
    "The laws": {
        "attnlab/testing/conformance.py": (),
        "attnlab/testing/invariants/variant_composition.py": (
            "compose_variants",
            "combine_choices",
            "iter_single_axis_variants",
        ),
    },
    "Contracts": {"attnlab/attention/contracts.py": ()},
    "Parts to build with": {
        "attnlab/attention/heads/projections.py": (),
        "attnlab/attention/scores/bias.py": (),
        "attnlab/attention/mixers/recurrence.py": (),
        "attnlab/attention/mixers/memory_mixer.py": (),
        "attnlab/attention/stateful/recurrent_state.py": (),
    },
    "Data": {"attnlab/data/task.py": (), "attnlab/data/synthetic_task.py": ()},
    "Callbacks": {"attnlab/training/callbacks.py": ("StepCallback",)},
    "Checkpoints": {
        "attnlab/model/huggingface/conversion.py": (),
        "attnlab/model/huggingface/families/family_table.py": (),
    },
}
NO_PROSE = re.compile(r"^# *(@package|yaml-language-server:).*\n", re.MULTILINE)  # comments for programs


def build_pages(root: Path) -> dict[str, str]:
    """Build all pages: name -> Markdown."""
    return {"verbs.md": render_verbs(), "python.md": render_python(root), **render_options(root / "conf")}


def render_verbs() -> str:
    """Render the help texts of attnlab and of each verb."""
    os.environ["COLUMNS"] = "100"  # the width that argparse uses
    from attnlab.cli.commands import build_parsers

    overview, verb_parsers = build_parsers()
    parts = [f"## {name}\n\n```text\n{parser.format_help()}```" for name, parser in verb_parsers.items()]
    return "\n\n".join(["# Verbs", f"```text\n{overview.format_help()}```", *parts, ""])


def render_options(conf: Path) -> dict[str, str]:
    """Render a page per config group with its options and their files, and an overview page."""
    files: dict[str, list[Path]] = {}
    for path in sorted(conf.glob("*/**/*.yaml")):
        if path.parent.name != "tuned":  # tuned learning rates are no options
            files.setdefault(path.parent.relative_to(conf).as_posix(), []).append(path)
    pages = {}
    rows = []
    for group, paths in files.items():
        name = f"{group.replace('/', '_')}.md"
        set_as = f"`python -m attnlab {'+' if group == 'experiment' else ''}{group}=NAME`"
        parts = [f"## {path.stem}\n\n{_render_option(path)}" for path in paths]
        pages[name] = "\n\n".join([f"# {group}", f"{set_as}, where NAME is one of these.", *parts, ""])
        links = " ".join(f"[{path.stem}]({name}#{path.stem.lower()})" for path in paths)
        rows.append(f"| [{group}]({name}) | {links} |")
    table = "\n".join(["| group | options |", "|---|---|", *rows])
    overview = f"## What is set without a group\n\n```yaml\n{(conf / 'config.yaml').read_text('utf-8')}```\n"
    return pages | {"options.md": f"# Options\n\n{table}\n\n{overview}"}


def _render_option(path: Path) -> str:
    """Render the leading comment of a yaml file, followed by the file."""
    text = NO_PROSE.sub("", path.read_text("utf-8"))
    leading_comment = re.match(r"(#.*\n)*", text)
    assert leading_comment is not None
    prose = re.sub(r"^# ?", "", leading_comment[0], flags=re.MULTILINE)
    return f"{_escape_angle_brackets(prose)}\n```yaml\n{path.read_text('utf-8')}```"


def render_python(root: Path) -> str:
    """Render the public names of PUBLIC; KeyError for a missing name."""
    parts = ["# Python"]
    for title, files in PUBLIC.items():
        parts.append(f"## {title}")
        for file, names in files.items():
            module = ast.parse((root / file).read_text("utf-8"))
            node_types = (ast.FunctionDef, ast.ClassDef)
            definitions = {
                node.name: node for node in module.body if isinstance(node, node_types) and _is_public(node)
            }
            parts.append(f"From `{file.removesuffix('.py').replace('/', '.')}`. {_render_docstring(module)}")
            for name in names or definitions:
                node = definitions[name]
                parts.append(
                    f"### {name}\n\n{_render_docstring(node)}\n\n```python\n{_format_stub(node)}\n```"
                )
    return "\n\n".join([*parts, ""])


def _is_public(node: ast.FunctionDef | ast.ClassDef) -> bool:
    return not node.name.startswith("_") or node.name in ("__init__", "__call__", "__len__")


def _format_stub(node: ast.FunctionDef | ast.ClassDef) -> str:
    """Format a function's signature, or a class with attributes and method signatures."""
    if isinstance(node, ast.FunctionDef):
        dots: list[ast.stmt] = [ast.Expr(ast.Constant(...))]
        return ast.unparse(ast.fix_missing_locations(_with_body(node, dots))).replace(":\n    ...", ": ...")
    lines = [ast.unparse(_with_body(node, [ast.Pass()])).removesuffix("\n    pass")]
    for part in node.body:
        if isinstance(part, ast.FunctionDef) and _is_public(part):
            summary = (ast.get_docstring(part) or "").partition("\n\n")[0]
            lines += ["", *(f"# {line}" for line in summary.splitlines()), *_format_stub(part).splitlines()]
        elif isinstance(part, ast.AnnAssign | ast.Assign):
            lines.append(ast.unparse(part))
    return "\n".join([lines[0], *(f"    {line}".rstrip() for line in lines[1:])])


def _with_body(node: ast.FunctionDef | ast.ClassDef, body: list[ast.stmt]) -> ast.stmt:
    fields = {name: getattr(node, name) for name in node._fields}
    return type(node)(**fields | {"body": body})


def _render_docstring(node: ast.Module | ast.FunctionDef | ast.ClassDef) -> str:
    """Render a docstring as Markdown; paragraphs aligned by spaces become preformatted text."""
    text = inspect.cleandoc(ast.get_docstring(node) or "")
    parts = [
        f"```text\n{part}\n```" if re.search(r"\S {3,}\S", part) else part
        for part in re.split(r"\n\n(?! )", text)
    ]
    return _escape_angle_brackets("\n\n".join(parts))


def _escape_angle_brackets(text: str) -> str:
    """Escape `<` outside code."""
    pieces = re.split(r"(```.*?```|`[^`]*`|^ {4}.*$)", text, flags=re.DOTALL | re.MULTILINE)
    return "".join(piece if i % 2 else piece.replace("<", "&lt;") for i, piece in enumerate(pieces))
