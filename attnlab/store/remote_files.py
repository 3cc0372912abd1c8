"""Files of a store in a bucket, through fsspec.

Only the public interface of fsspec is used. Every error is an OSError here: libraries of buckets raise types
of their own.
"""

import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from attnlab.errors import InvalidConfig
from attnlab.store.safe_paths import require_safe_names

P = ParamSpec("P")
R = TypeVar("R")
_LIBRARIES = {"s3": "s3fs"}  # protocol -> module that the extra of this name installs


def is_url(path: str) -> bool:
    """Return whether a path names a store in a bucket, as in s3://bucket/prefix."""
    return "://" in path


@dataclass(frozen=True)
class RemoteObject:
    """A file in the bucket; `version` changes with its content, `modified` is in seconds since the epoch."""

    version: str
    modified: float


def _convert_errors(function: Callable[P, R]) -> Callable[P, R]:
    @wraps(function)
    def call(*arguments: P.args, **options: P.kwargs) -> R:
        try:
            return function(*arguments, **options)
        except (OSError, InvalidConfig):
            raise
        except Exception as error:
            raise ConnectionError(f"{type(error).__name__}: {' '.join(str(error).split())}") from error

    return call


class RemoteFiles:
    """Files below a URL, by paths relative to it."""

    def __init__(self, url: str) -> None:
        """Check the URL and the library that reads it.

        Raises:
            InvalidConfig: the protocol is unknown, its library is not installed, or the URL has no bucket.
        """
        protocol, _, path = url.partition("://")
        path = path.strip("/")
        self.url = f"{protocol}://{path}"
        if protocol not in _LIBRARIES:
            raise InvalidConfig(
                f"paths.runs={url}: the protocol {protocol} is not supported: use a folder, or "
                "s3://BUCKET/PREFIX"
            )
        if not path:
            raise InvalidConfig(f"paths.runs={url}: no bucket: give s3://BUCKET/PREFIX")
        try:
            importlib.import_module(_LIBRARIES[protocol])
        except ImportError as error:
            raise InvalidConfig(f"paths.runs={url} needs: pip install 'attnlab[{protocol}]'") from error
        self._protocol = protocol
        self._base = path

    @property
    def _system(self) -> Any:
        import fsspec

        # fsspec has one instance per process; a forked child must not use that of its parent
        return fsspec.filesystem(self._protocol, use_listings_cache=False)

    def _get_path(self, name: str) -> str:
        return f"{self._base}/{name}" if name else self._base

    @_convert_errors
    def list(self, folder: str = "") -> dict[str, RemoteObject]:
        """List all files below a folder, by path relative to it; one request per thousand.

        Raises:
            InvalidConfig: a key cannot be the path of a file below the local folder.
        """
        prefix = f"{self._get_path(folder)}/"
        found = self._system.find(prefix, detail=True)
        objects = {
            path.removeprefix(prefix): RemoteObject(str(entry["ETag"]), entry["LastModified"].timestamp())
            for path, entry in found.items()
            if path.startswith(prefix) and not path.endswith("/")  # marks of folders
        }
        require_safe_names(objects, f"{self._protocol}://{prefix}")
        return objects

    @_convert_errors
    def read(self, name: str) -> bytes:
        """Read a file.

        Raises:
            FileNotFoundError: there is none.
        """
        content: bytes = self._system.cat_file(self._get_path(name))
        return content

    @_convert_errors
    def write(self, name: str, content: bytes) -> None:
        """Create or replace a file."""
        self._system.pipe_file(self._get_path(name), content)

    @_convert_errors
    def create(self, name: str, content: bytes) -> None:
        """Create a file by a conditional write.

        Raises:
            FileExistsError: there is one.
        """
        self._system.pipe_file(self._get_path(name), content, mode="create")

    @_convert_errors
    def download(self, name: str, path: Path) -> None:
        """Copy a file to `path`.

        Raises:
            FileNotFoundError: there is none.
        """
        self._system.get_file(self._get_path(name), str(path))

    @_convert_errors
    def upload(self, path: Path, name: str) -> None:
        """Copy `path` into the bucket, where it appears complete or not at all."""
        self._system.put_file(str(path), self._get_path(name))

    @_convert_errors
    def get_version(self, name: str) -> str:
        """Return the version of a file."""
        return str(self._system.info(self._get_path(name))["ETag"])

    @_convert_errors
    def remove(self, names: Sequence[str]) -> None:
        """Remove files, all in one request."""
        if names:
            self._system.rm([self._get_path(name) for name in names])

    @contextmanager
    def explain_errors(self) -> Iterator[None]:
        """Turn errors of access into one line.

        Raises:
            InvalidConfig: the bucket is missing, or cannot be used.
        """
        try:
            yield
        except FileNotFoundError as error:
            raise InvalidConfig(
                f"paths.runs={self.url}: bucket not found: create it, or correct its name"
            ) from error
        except PermissionError as error:
            raise InvalidConfig(
                f"paths.runs={self.url}: access denied ({error}): check the credentials and their rights"
            ) from error
        except OSError as error:
            remedy = (
                "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or log in with `aws configure`"
                if "Credentials" in str(error)
                else "check the network, and AWS_ENDPOINT_URL if the bucket is not at Amazon"
            )
            raise InvalidConfig(f"paths.runs={self.url} cannot be used ({error}): {remedy}") from error
