"""Digests of source code: the modules that a name reaches by imports, each hashed by its tokens.

Comments, docstrings, blank lines and layout do not count; statements do. Only modules of attnlab and of the
user are read, and of installed packages that the names begin with, such as a user's own. Other installed
packages are recorded by version. No module is imported to find them.

A module of the user declares the files that it reads as `FILES = ("settings.json",)`, paths relative to its
folder; their content is part of its digest.
"""

import ast
import hashlib
import io
import os
import sys
import sysconfig
import tokenize
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache
from importlib.machinery import PathFinder, SourceFileLoader
from pathlib import Path
from typing import NamedTuple
from zipimport import zipimporter

from attnlab.errors import InvalidConfig

SourceLoader = SourceFileLoader | zipimporter
_IGNORED_TOKENS = (tokenize.COMMENT, tokenize.NL, tokenize.ENCODING, tokenize.ENDMARKER)
_LIBRARIES = {"torch", "pytorch_lightning", "lightning", "hydra"}  # not read, although configs name them
FILES_NAME = "FILES"  # the variable of a module that declares files
_LAYOUT_TOKENS = {tokenize.NEWLINE: "\n", tokenize.INDENT: "\x01", tokenize.DEDENT: "\x02"}


class SourceModule(NamedTuple):
    """A module that a name reaches: its file, the digest of its code, its imports and declared files."""

    path: Path
    loader: SourceLoader
    code: str
    imports: tuple[str, ...]
    files: tuple[str, ...]

    def compute_digest(self) -> str:
        """Return the digest of the code and of the content of the declared files."""
        if not self.files:
            return self.code
        digest = hashlib.sha256(self.code.encode())
        for name in self.files:
            path = Path(os.path.normpath(self.path.parent / name))
            try:
                digest.update(f"\0{name}\0{_hash_content(path, self.loader, _get_version(path))}".encode())
            except OSError as error:
                raise InvalidConfig(
                    f"{self.path.name} declares {name} in {FILES_NAME}, but {path} cannot be read "
                    f"({error.strerror or 'it is missing'}): correct the name, or restore the file"
                ) from error
        return digest.hexdigest()[:16]


def hash_sources(names: Iterable[str], excluded_packages: Iterable[str] = ()) -> dict[str, str]:
    """Return module -> digest for the modules of `find_sources`, in the order of their names.

    Raises:
        InvalidConfig: A file that a module declares cannot be read.
    """
    sources = find_sources(names, excluded_packages)
    return {name: sources[name].compute_digest() for name in sorted(sources)}


def find_sources(names: Iterable[str], excluded_packages: Iterable[str] = ()) -> dict[str, SourceModule]:
    """Return the modules in the closure of static imports of all names.

    Modules in `excluded_packages` are left out, and so are modules reached only through them, except modules
    in `names`.
    """
    sources: dict[str, SourceModule] = {}
    excluded_packages = tuple(excluded_packages)
    queue = [(name, True) for name in names]
    packages = {name.partition(".")[0] for name, _ in queue} - _LIBRARIES
    while queue:
        name, is_root = queue.pop()
        for module, file, loader in _find_modules(name, name.partition(".")[0] in packages, tuple(sys.path)):
            if (
                module in sources
                or module == "attnlab"
                or (not is_root and _is_under(module, excluded_packages))
            ):
                continue
            source = _parse_module(file, loader, _get_version(file), module, file.name == "__init__.py")
            sources[module] = source
            queue += [(imported, False) for imported in source.imports]
    return sources


def hash_file(path: Path) -> str:
    """Return the digest of a file's content."""
    return _hash_content(path, None, _get_version(path))


def is_user_name(name: str) -> bool:
    """Whether a dotted name is neither attnlab's nor that of a library whose source is not read."""
    return name.partition(".")[0] not in {"attnlab", *_LIBRARIES}


def strip_to_tokens(text: str) -> str:
    """Return the hashed text of a module; equal for all Python versions that tokenize it alike."""
    docstring_lines = _find_docstring_lines(text)
    parts: list[str] = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        in_docstring = token.start[0] in docstring_lines and token.type not in (
            tokenize.INDENT,
            tokenize.DEDENT,
        )
        if token.type in _IGNORED_TOKENS or in_docstring:
            continue
        word = _LAYOUT_TOKENS.get(token.type, token.string)
        needs_space = bool(parts) and parts[-1][-1:].isidentifier() and word[:1].isidentifier()
        parts.append(f" {word}" if needs_space else word)
    return "".join(parts)


def _find_docstring_lines(text: str) -> set[int]:
    """Return the lines that hold a docstring and no other code."""
    lines: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        docstring = node.body[0] if node.body else None
        if (
            isinstance(docstring, ast.Expr)
            and isinstance(docstring.value, ast.Constant)
            and isinstance(docstring.value.value, str)
        ):
            alone = len(node.body) == 1 or node.body[1].lineno > (docstring.end_lineno or 0)
            on_own_line = isinstance(node, ast.Module) or docstring.lineno > node.lineno
            if alone and on_own_line:
                lines.update(range(docstring.lineno, (docstring.end_lineno or docstring.lineno) + 1))
    return lines


def _is_under(module: str, roots: Iterable[str]) -> bool:
    return any(module == root or module.startswith(root + ".") for root in roots)


@cache
def _find_modules(
    name: str, may_be_installed: bool, _path: tuple[str, ...]
) -> tuple[tuple[str, Path, SourceLoader], ...]:
    """Return the modules that importing a dotted name runs, packages first; an attribute ends the path.

    The file of a module in a zip archive is the archive's path followed by the path inside.

    Args:
        name: the dotted name.
        may_be_installed: whether to read an installed package other than attnlab.
    """
    return tuple(_iterate_modules(name, may_be_installed))


def _iterate_modules(name: str, may_be_installed: bool) -> Iterator[tuple[str, Path, SourceLoader]]:
    path: list[str] | None = None
    parts = name.split(".")
    for depth in range(1, len(parts) + 1):
        module = ".".join(parts[:depth])
        spec = PathFinder.find_spec(module, path)
        if spec is None:
            return
        if isinstance(spec.loader, SourceLoader) and spec.origin and spec.origin.endswith(".py"):
            file = Path(spec.origin)
            if depth == 1 and parts[0] != "attnlab" and not _is_user_file(file, may_be_installed):
                return
            yield module, file, spec.loader
        if spec.submodule_search_locations is None:
            return
        path = list(spec.submodule_search_locations)


def _is_user_file(file: Path, may_be_installed: bool) -> bool:
    folder = str(file.resolve().parent)
    if "site-packages" in file.parts or "dist-packages" in file.parts:
        return may_be_installed
    return not folder.startswith(sysconfig.get_path("stdlib"))


def _get_version(path: Path) -> tuple[int, ...]:
    """Return size and times of a file, or of the zip archive that it is in; nobody can set the last time."""
    status = next(parent for parent in (path, *path.parents) if parent.exists()).stat()
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns


@cache
def _hash_content(path: Path, loader: SourceLoader | None, _version: tuple[int, ...]) -> str:
    content = loader.get_data(str(path)) if loader else path.read_bytes()
    return hashlib.sha256(content).hexdigest()[:16]


@cache
def _parse_module(
    file: Path, loader: SourceLoader, _version: tuple[int, ...], module: str, is_package: bool
) -> SourceModule:
    """Parse a file; its bytes are hashed if it does not parse as Python."""
    raw = loader.get_data(str(file)).replace(b"\r\n", b"\n")
    try:
        text = raw.decode()
        tree = ast.parse(text)
        code = strip_to_tokens(text)
    except (SyntaxError, ValueError, tokenize.TokenError):
        return SourceModule(file, loader, hashlib.sha256(raw).hexdigest()[:16], (), ())
    package = module if is_package else module.rpartition(".")[0]
    imports: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imports += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parents, base] if base else parents)
            imports += [f"{base}.{alias.name}" if base else alias.name for alias in node.names]
    files = _find_declared_files(tree) if is_user_name(module) else ()
    return SourceModule(file, loader, hashlib.sha256(code.encode()).hexdigest()[:16], tuple(imports), files)


def _find_declared_files(tree: ast.Module) -> tuple[str, ...]:
    """Return the file names that a module assigns to FILES as a literal; none for other values."""
    values = [
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name) and target.id == FILES_NAME
    ]
    with suppress(ValueError):
        names = ast.literal_eval(values[-1]) if values else ()
        names = (names,) if isinstance(names, str) else names
        if isinstance(names, list | tuple) and all(isinstance(name, str) for name in names):
            return tuple(names)
    return ()
