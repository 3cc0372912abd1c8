"""Source code as part of what a run is: the modules that a name reaches, and a digest of each one's tokens.

Comments, docstrings, blank lines and layout do not count; a statement does. attnlab's own modules and the
user's are read, never installed packages, which are recorded by version. Nothing is imported to find them.
"""

import ast
import hashlib
import io
import sys
import sysconfig
import tokenize
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.machinery import PathFinder
from pathlib import Path

_SILENT = (tokenize.COMMENT, tokenize.NL, tokenize.ENCODING, tokenize.ENDMARKER)
_LAYOUT = {tokenize.NEWLINE: "\n", tokenize.INDENT: "\x01", tokenize.DEDENT: "\x02"}


def sources(names: Iterable[str], without: Iterable[str] = ()) -> dict[str, str]:
    """Module name -> digest, for the closure of static imports of all names. What lies in the packages
    `without` is left out, and what is only reached through it, unless it is named itself.
    """
    digests: dict[str, str] = {}
    without = tuple(without)
    queue = [(name, True) for name in names]
    while queue:
        name, asked = queue.pop()
        for module, file in _modules(name, tuple(sys.path)):
            if module in digests or module == "attnlab" or (not asked and _under(module, without)):
                continue
            digests[module], imports = _read(
                file, file.stat().st_mtime_ns, module, file.name == "__init__.py"
            )
            queue += [(imported, False) for imported in imports]
    return dict(sorted(digests.items()))


def tokens(text: str) -> str:
    """What of a module's text counts. The same text for every version of Python that reads it alike."""
    silent = _docstrings(text)
    parts: list[str] = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        said_in_silence = token.start[0] in silent and token.type not in (tokenize.INDENT, tokenize.DEDENT)
        if token.type in _SILENT or said_in_silence:
            continue
        word = _LAYOUT.get(token.type, token.string)
        between = bool(parts) and parts[-1][-1:].isidentifier() and word[:1].isidentifier()
        parts.append(f" {word}" if between else word)
    return "".join(parts)


def _docstrings(text: str) -> set[int]:
    """The lines on which a docstring lies, where nothing else does."""
    lines: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        first = node.body[0] if node.body else None
        if (
            isinstance(first, ast.Expr)
            and isinstance(first.value, ast.Constant)
            and isinstance(first.value.value, str)
        ):
            alone = len(node.body) == 1 or node.body[1].lineno > (first.end_lineno or 0)
            on_a_line_of_its_own = isinstance(node, ast.Module) or first.lineno > node.lineno
            if alone and on_a_line_of_its_own:
                lines.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return lines


def _under(module: str, roots: Iterable[str]) -> bool:
    return any(module == root or module.startswith(root + ".") for root in roots)


@cache
def _modules(name: str, _path: tuple[str, ...]) -> tuple[tuple[str, Path], ...]:
    """The modules that importing a dotted name would run: its packages, then itself. An attribute ends it."""
    return tuple(_found(name))


def _found(name: str) -> Iterator[tuple[str, Path]]:
    path: list[str] | None = None
    parts = name.split(".")
    for depth in range(1, len(parts) + 1):
        module = ".".join(parts[:depth])
        spec = PathFinder.find_spec(module, path)
        if spec is None:
            return
        if spec.has_location and spec.origin and spec.origin.endswith(".py"):
            file = Path(spec.origin)
            if depth == 1 and parts[0] != "attnlab" and not _is_users(file):
                return
            yield module, file
        if spec.submodule_search_locations is None:
            return
        path = list(spec.submodule_search_locations)


def _is_users(file: Path) -> bool:
    folder = str(file.resolve().parent)
    if "site-packages" in file.parts or "dist-packages" in file.parts:
        return False
    return not folder.startswith(sysconfig.get_path("stdlib"))


@cache
def _read(file: Path, _modified: int, module: str, is_package: bool) -> tuple[str, tuple[str, ...]]:
    """The digest of a file's tokens, and what it imports; of a file that is no Python, of its bytes."""
    raw = file.read_bytes().replace(b"\r\n", b"\n")
    try:
        text = raw.decode()
        tree = ast.parse(text)
        counted = tokens(text)
    except (SyntaxError, ValueError, tokenize.TokenError):
        return hashlib.sha256(raw).hexdigest()[:16], ()
    package = module if is_package else module.rpartition(".")[0]
    imports: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imports += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, base] if base else above)
            imports += [f"{base}.{alias.name}" if base else alias.name for alias in node.names]
    return hashlib.sha256(counted.encode()).hexdigest()[:16], tuple(imports)
