"""Python code: the installed standard library and attnlab's dependencies, without tests.

A prepared corpus is not checked against the files again: the versions and locations of Python and of the
packages identify their files. After editing an installed package, delete `corpora` in paths.cache.
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

from attnlab.data.corpora.corpus import Corpus, CorpusMetadata
from attnlab.data.corpora.duplicates import find_near_duplicates
from attnlab.data.corpora.token_cache import write_file_atomically, write_folder_atomically
from attnlab.data.task import compute_fingerprint
from attnlab.errors import InvalidConfig

VERSION = 1  # raise it when the same files give another text
PACKAGES = (  # dependencies of attnlab, so always installed, with much Python code that is not generated
    "anyio", "click", "datasets", "filelock", "fsspec", "huggingface-hub", "hydra-core", "jinja2", "mpmath",
    "networkx", "numpy", "omegaconf", "packaging", "pandas", "pillow", "pyarrow", "pydantic", "pygments",
    "pytorch-lightning", "rich", "scipy", "sympy", "torch", "torchmetrics", "urllib3", "wandb",
)  # fmt: skip
_TEST_FOLDERS = {"test", "tests", "testing", "idle_test"}
_TEST_MODULE = re.compile(r"test_.*|.*_test|tests|conftest")
# written by a build: they differ between two wheels of one version, and are hardly code
_GENERATED_MODULE = re.compile(
    r"_?version|__version__|_version_meson|_generated_version|__config__|.*_pb2|_sysconfigdata.*|sitecustomize"
)
# not part of the library, except pydoc_data, which is the pydocs corpus
_EXCLUDED_FOLDERS = {"site-packages", "dist-packages", "lib-dynload", "__pycache__", "pydoc_data"}
LIBRARY_PATH = sysconfig.get_path("stdlib")

SourceFile = tuple[str, str, Path]  # top-level package, path relative to the install folder, file


def load_code_corpus(cache: str) -> Corpus:
    """Load the code corpus, prepared and cached at first use.

    Raises:
        InvalidConfig: one of the packages is missing.
    """
    packages = _find_packages()
    versions = {name: package.version for name, package in packages.items()}
    locations = sorted({LIBRARY_PATH, *(str(package.locate_file("")) for package in packages.values())})
    fingerprint = compute_fingerprint(
        version=VERSION, python=sys.version, packages=versions, places=locations
    )
    folder = Path(cache) / "corpora" / fingerprint[:32]
    if not folder.exists():
        print(
            "collecting the sources of Python and its packages; the result is cached",
            file=sys.stderr,
            flush=True,
        )
        _write_corpus(packages, folder)
    metadata = CorpusMetadata.model_validate_json((folder / "about.json").read_bytes())
    return Corpus(metadata, "data=code", (folder / "text").read_bytes)


def _find_packages() -> dict[str, Distribution]:
    packages = {}
    missing = []
    for name in PACKAGES:
        try:
            packages[name] = distribution(name)
        except PackageNotFoundError:
            missing.append(name)
    if missing:
        names = " ".join(missing)
        raise InvalidConfig(
            f"data=code needs packages that are not installed ({', '.join(missing)}): run"
            f" `pip install -c constraints.txt {names}`, or use a frozen corpus (data=frozen)"
        )
    return packages


def list_source_files(packages: dict[str, Distribution]) -> list[SourceFile]:
    """List all source files by package and path, in the same order on every machine."""
    source_files = [*_walk_library(Path(LIBRARY_PATH))]
    for name, package in packages.items():
        if package.files is None:
            raise InvalidConfig(f"data=code: package {name} has no list of its files: install it with pip")
        for file in package.files:
            if file.suffix == ".py" and ".." not in file.parts and _is_source(file):
                source_files.append(
                    (_top_level_name(file), file.as_posix(), Path(str(package.locate_file(file))))
                )
    return sorted(source_files, key=lambda source_file: source_file[:2])


def _walk_library(home: Path) -> Iterator[SourceFile]:
    for folder, subfolders, names in os.walk(home):
        subfolders[:] = [
            name for name in subfolders if name not in _EXCLUDED_FOLDERS and not name.startswith("config-")
        ]
        for name in names:
            file = PurePosixPath(Path(folder, name).relative_to(home).as_posix())
            if file.suffix == ".py" and _is_source(file):
                yield _top_level_name(file), file.as_posix(), Path(folder, name)


def _is_source(file: PurePosixPath) -> bool:
    is_test = _TEST_FOLDERS & {*file.parts[:-1]} or _TEST_MODULE.fullmatch(file.stem)
    return not is_test and not _GENERATED_MODULE.fullmatch(file.stem)


def _top_level_name(file: PurePosixPath) -> str:
    return file.parts[0].removesuffix(".py")


def clean_source_files(files: Sequence[SourceFile]) -> tuple[list[tuple[str, str, bytes]], dict[str, int]]:
    """Drop unreadable, empty and duplicate files.

    Returns:
        Package, path and content of the remaining files, and the number of files listed and dropped, by
        reason.
    """
    counts = dict.fromkeys(
        ("files listed", "missing", "empty", "not UTF-8", "duplicates", "near duplicates"), 0
    )
    counts["files listed"] = len(files)
    contents = []
    digests = set()
    for package, path, file in files:
        reason, content = _read_content(file)
        digest = sha256(content).digest()
        if not reason and digest in digests:
            reason = "duplicates"
        if reason:
            counts[reason] += 1
            continue
        digests.add(digest)
        contents.append((package, path, content))
    originals = find_near_duplicates(content for _, _, content in contents)
    remaining = [item for item, original in zip(contents, originals, strict=True) if original is None]
    counts["near duplicates"] = len(contents) - len(remaining)
    return remaining, counts


def _read_content(file: Path) -> tuple[str, bytes]:
    """Return the reason for dropping a file, "" if there is none, and its content."""
    try:
        content = file.read_bytes()
        content.decode()
    except FileNotFoundError:  # listed by the installation, but removed since
        return "missing", b""
    except UnicodeDecodeError:
        return "not UTF-8", b""
    return ("" if content.strip() else "empty"), content


def _write_corpus(packages: dict[str, Distribution], folder: Path) -> None:
    source_files, counts = clean_source_files(list_source_files(packages))
    texts: dict[str, list[bytes]] = {}
    for package, _, content in source_files:
        texts.setdefault(package, []).append(content)
    groups = {package: b"\n".join(contents) + b"\n" for package, contents in texts.items()}
    text = b"".join(groups.values())
    # a local label (2.13.0+cpu) describes the build of the wheel, not its Python code
    versions = [f"{name} {package.version.partition('+')[0]}" for name, package in packages.items()]
    files = compute_fingerprint(
        files=[(path, sha256(content).hexdigest()) for _, path, content in source_files]
    )
    sources = (f"python {platform.python_version()}", *versions)
    metadata = CorpusMetadata(
        name="code",
        sha256=sha256(text).hexdigest(),
        bytes=len(text),
        origin=f"{', '.join(sources)}, files {files}",
        groups=tuple((package, len(group)) for package, group in groups.items()),
        counts={"files kept": len(source_files), **counts},
        sources=sources,
    )
    with write_folder_atomically(folder) as temporary_folder:
        write_file_atomically(temporary_folder / "text", text)
        write_file_atomically(temporary_folder / "about.json", metadata.model_dump_json(indent=1).encode())
