"""The pages that are made of the source: verbs of parsers, options of yaml, Python of its docstrings.

Python is read, not imported: a class is shown by its signatures, as in a stub, with the first paragraph
of what each of them says.
"""

import ast
import inspect
import os
import re
from pathlib import Path

# What who reads results or writes a variant meets: file -> names, all that are public where none is said.
PUBLIC: dict[str, dict[str, tuple[str, ...]]] = {
    "Results": {"attnlab/report/frames.py": ("load", "Results", "Report", "Store")},
    "The laws": {
        "attnlab/testing/kit.py": (),
        "attnlab/testing/laws/compose.py": ("composed", "combination", "one_at_a_time"),
    },
    "Contracts": {"attnlab/attention/contracts.py": ()},
    "Parts to build with": {
        "attnlab/attention/heads/projections.py": (),
        "attnlab/attention/scores/bias.py": (),
        "attnlab/attention/mixers/recurrence.py": (),
        "attnlab/attention/mixers/memory.py": (),
        "attnlab/attention/past/past.py": (),
    },
    "Data": {"attnlab/data/task.py": (), "attnlab/data/drawn.py": ()},
    "Callbacks": {"attnlab/training/callbacks.py": ("OnStep",)},
    "Checkpoints": {
        "attnlab/model/huggingface/convert.py": (),
        "attnlab/model/huggingface/families/table.py": (),
    },
}
NO_PROSE = re.compile(
    r"^# *(@package|yaml-language-server:).*\n", re.MULTILINE
)  # comments that speak to programs


def pages(root: Path) -> dict[str, str]:
    """Name -> Markdown."""
    return {"verbs.md": verbs(), "python.md": python(root), **options(root / "conf")}


def verbs() -> str:
    """What `--help` prints, of the whole and of each verb."""
    os.environ["COLUMNS"] = "100"  # which argparse goes by
    from attnlab.cli.commands import parsers

    whole, each = parsers()
    parts = [f"## {name}\n\n```text\n{parser.format_help()}```" for name, parser in each.items()]
    return "\n\n".join(["# Verbs", f"```text\n{whole.format_help()}```", *parts, ""])


def options(conf: Path) -> dict[str, str]:
    """A page for each group: what its options are, and their files; and one that leads to all."""
    files: dict[str, list[Path]] = {}
    for path in sorted(conf.glob("*/**/*.yaml")):
        if path.parent.name != "tuned":  # rates that were found: no options
            files.setdefault(path.parent.relative_to(conf).as_posix(), []).append(path)
    made = {}
    rows = []
    for group, paths in files.items():
        name = f"{group.replace('/', '_')}.md"
        set_as = f"`python -m attnlab {'+' if group == 'experiment' else ''}{group}=NAME`"
        parts = [f"## {path.stem}\n\n{_option(path)}" for path in paths]
        made[name] = "\n\n".join([f"# {group}", f"{set_as}, where NAME is one of these.", *parts, ""])
        links = " ".join(f"[{path.stem}]({name}#{path.stem.lower()})" for path in paths)
        rows.append(f"| [{group}]({name}) | {links} |")
    table = "\n".join(["| group | options |", "|---|---|", *rows])
    whole = f"## What is set without a group\n\n```yaml\n{(conf / 'config.yaml').read_text('utf-8')}```\n"
    return made | {"options.md": f"# Options\n\n{table}\n\n{whole}"}


def _option(path: Path) -> str:
    """The prose that a file begins with, and the file."""
    text = NO_PROSE.sub("", path.read_text("utf-8"))
    head = re.match(r"(#.*\n)*", text)
    assert head is not None
    prose = re.sub(r"^# ?", "", head[0], flags=re.MULTILINE)
    return f"{_escaped(prose)}\n```yaml\n{path.read_text('utf-8')}```"


def python(root: Path) -> str:
    """The public names of PUBLIC. KeyError for one that is not there."""
    parts = ["# Python"]
    for title, files in PUBLIC.items():
        parts.append(f"## {title}")
        for file, names in files.items():
            module = ast.parse((root / file).read_text("utf-8"))
            kinds = (ast.FunctionDef, ast.ClassDef)
            there = {node.name: node for node in module.body if isinstance(node, kinds) and _public(node)}
            parts.append(f"From `{file.removesuffix('.py').replace('/', '.')}`. {_prose(module)}")
            parts += [
                f"### {name}\n\n{_prose(there[name])}\n\n```python\n{_stub(there[name])}\n```"
                for name in names or there
            ]
    return "\n\n".join([*parts, ""])


def _public(node: ast.FunctionDef | ast.ClassDef) -> bool:
    return not node.name.startswith("_") or node.name in ("__init__", "__call__", "__len__")


def _stub(node: ast.FunctionDef | ast.ClassDef) -> str:
    """A function's signature; of a class its attributes and the signatures of its methods too."""
    if isinstance(node, ast.FunctionDef):
        dots: list[ast.stmt] = [ast.Expr(ast.Constant(...))]
        return ast.unparse(ast.fix_missing_locations(_with_body(node, dots))).replace(":\n    ...", ": ...")
    lines = [ast.unparse(_with_body(node, [ast.Pass()])).removesuffix("\n    pass")]
    for part in node.body:
        if isinstance(part, ast.FunctionDef) and _public(part):
            says = (ast.get_docstring(part) or "").partition("\n\n")[0]
            lines += ["", *(f"# {line}" for line in says.splitlines()), *_stub(part).splitlines()]
        elif isinstance(part, ast.AnnAssign | ast.Assign):
            lines.append(ast.unparse(part))
    return "\n".join([lines[0], *(f"    {line}".rstrip() for line in lines[1:])])


def _with_body(node: ast.FunctionDef | ast.ClassDef, body: list[ast.stmt]) -> ast.stmt:
    fields = {name: getattr(node, name) for name in node._fields}
    return type(node)(**fields | {"body": body})


def _prose(node: ast.Module | ast.FunctionDef | ast.ClassDef) -> str:
    """A docstring as Markdown: what is laid out by spaces stays as it is."""
    text = inspect.cleandoc(ast.get_docstring(node) or "")
    parts = [
        f"```text\n{part}\n```" if re.search(r"\S {3,}\S", part) else part
        for part in re.split(r"\n\n(?! )", text)
    ]
    return _escaped("\n\n".join(parts))


def _escaped(text: str) -> str:
    """`<` is a letter, but in code."""
    pieces = re.split(r"(```.*?```|`[^`]*`|^ {4}.*$)", text, flags=re.DOTALL | re.MULTILINE)
    return "".join(piece if i % 2 else piece.replace("<", "&lt;") for i, piece in enumerate(pieces))
