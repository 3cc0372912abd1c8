"""Python code: the standard library and what attnlab runs on, as installed here, without tests.

Surprising: once it is prepared, nothing of it is looked at again; the versions of Python and of the packages,
and where they lie, stand for their files. Who edits an installed package deletes `corpora` in paths.cache.
"""

import os
import platform
import re
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from hashlib import sha256
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path, PurePosixPath

from attnlab.data.corpora.corpus import About, Corpus
from attnlab.data.corpora.duplicates import near
from attnlab.data.corpora.kept import whole, write
from attnlab.data.task import fingerprint
from attnlab.errors import Refused

VERSION = 1  # of the way from installed files to the text: raise it when the same files give another one
PACKAGES = (  # what attnlab needs, so whoever can run it has them; those with much Python, and not generated
    "anyio", "click", "datasets", "filelock", "fsspec", "huggingface-hub", "hydra-core", "jinja2", "mpmath",
    "networkx", "numpy", "omegaconf", "packaging", "pandas", "pillow", "pyarrow", "pydantic", "pygments",
    "pytorch-lightning", "rich", "scipy", "sympy", "torch", "torchmetrics", "urllib3", "wandb",
)  # fmt: skip
_TESTS = {"test", "tests", "testing", "idle_test"}
_TEST = re.compile(r"test_.*|.*_test|tests|conftest")
_BUILT = re.compile(  # written by a build, so not the same in two wheels of one version; no code, at any rate
    r"_?version|__version__|_version_meson|_generated_version|__config__|.*_pb2|_sysconfigdata.*|sitecustomize"
)
# beside the library, and pydoc_data, which is the corpus pydocs
_NO_LIBRARY = {"site-packages", "dist-packages", "lib-dynload", "__pycache__", "pydoc_data"}
LIBRARY = sysconfig.get_path("stdlib")

Listed = tuple[str, str, Path]  # the top-level package, the path below the folder that it lies in, the file


def code_corpus(cache: str) -> Corpus:
    """Refused, one line, where one of the packages is missing."""
    packages = _installed()
    versions = {name: found.version for name, found in packages.items()}
    places = sorted({LIBRARY, *(str(found.locate_file("")) for found in packages.values())})
    state = fingerprint(version=VERSION, python=sys.version, packages=versions, places=places)
    folder = Path(cache) / "corpora" / state[:32]
    if not folder.exists():
        print("reading the sources of Python and its packages, once", file=sys.stderr, flush=True)
        _prepare(packages, folder)
    about = About.model_validate_json((folder / "about.json").read_bytes())
    return Corpus(about, "data=code", (folder / "text").read_bytes)


def _installed() -> dict[str, Distribution]:
    packages = {}
    missing = []
    for name in PACKAGES:
        try:
            packages[name] = distribution(name)
        except PackageNotFoundError:
            missing.append(name)
    if missing:
        names = " ".join(missing)
        raise Refused(
            f"data=code: {', '.join(missing)} not installed here: pip install -c constraints.txt {names}, or"
            " take a frozen corpus (data=frozen)"
        )
    return packages


def listed(packages: dict[str, Distribution]) -> list[Listed]:
    """All files, by package and path: the same order everywhere."""
    found = [*_library(Path(LIBRARY))]
    for name, package in packages.items():
        if package.files is None:
            raise Refused(f"data=code: {name} has no list of its files: install it with pip")
        for file in package.files:
            if file.suffix == ".py" and ".." not in file.parts and _is_source(file):
                found.append((_top(file), file.as_posix(), Path(str(package.locate_file(file)))))
    return sorted(found, key=lambda one: one[:2])


def _library(home: Path) -> Iterator[Listed]:
    for folder, below, names in os.walk(home):
        below[:] = [name for name in below if name not in _NO_LIBRARY and not name.startswith("config-")]
        for name in names:
            file = PurePosixPath(Path(folder, name).relative_to(home).as_posix())
            if file.suffix == ".py" and _is_source(file):
                yield _top(file), file.as_posix(), Path(folder, name)


def _is_source(file: PurePosixPath) -> bool:
    tests = _TESTS & {*file.parts[:-1]} or _TEST.fullmatch(file.stem)
    return not tests and not _BUILT.fullmatch(file.stem)


def _top(file: PurePosixPath) -> str:
    return file.parts[0].removesuffix(".py")


def cleaned(files: Sequence[Listed]) -> tuple[list[tuple[str, str, bytes]], dict[str, int]]:
    """Package, path and content of what stays, and how many files there were and why others were left out."""
    counts = dict.fromkeys(
        ("files listed", "missing", "empty", "not UTF-8", "duplicates", "near duplicates"), 0
    )
    counts["files listed"] = len(files)
    read = []
    seen = set()
    for package, path, file in files:
        fault, content = _content(file)
        digest = sha256(content).digest()
        if not fault and digest in seen:
            fault = "duplicates"
        if fault:
            counts[fault] += 1
            continue
        seen.add(digest)
        read.append((package, path, content))
    originals = near(content for _, _, content in read)
    kept = [one for one, original in zip(read, originals, strict=True) if original is None]
    counts["near duplicates"] = len(read) - len(kept)
    return kept, counts


def _content(file: Path) -> tuple[str, bytes]:
    """Why a file is left out, or nothing, and what is in it."""
    try:
        content = file.read_bytes()
        content.decode()
    except FileNotFoundError:  # named in the list of an installation, and removed since
        return "missing", b""
    except UnicodeDecodeError:
        return "not UTF-8", b""
    return ("" if content.strip() else "empty"), content


def _prepare(packages: dict[str, Distribution], folder: Path) -> None:
    kept, counts = cleaned(listed(packages))
    texts: dict[str, list[bytes]] = {}
    for package, _, content in kept:
        texts.setdefault(package, []).append(content)
    groups = {package: b"\n".join(contents) + b"\n" for package, contents in texts.items()}
    text = b"".join(groups.values())
    # a local label (2.13.0+cpu) says how a wheel was built, which is none of its Python's business
    versions = [f"{name} {found.version.partition('+')[0]}" for name, found in packages.items()]
    files = fingerprint(files=[(path, sha256(content).hexdigest()) for _, path, content in kept])
    sources = (f"python {platform.python_version()}", *versions)
    about = About(
        name="code",
        sha256=sha256(text).hexdigest(),
        bytes=len(text),
        origin=f"{', '.join(sources)}, files {files}",
        groups=tuple((package, len(group)) for package, group in groups.items()),
        counts={"files kept": len(kept), **counts},
        sources=sources,
    )
    with whole(folder) as partial:
        write(partial / "text", text)
        write(partial / "about.json", about.model_dump_json(indent=1).encode())
