"""The tensors of a checkpoint folder: one safetensors file, or several with an index.

Pickled weights are rejected, because reading them executes code.
"""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from attnlab.model.finite_weights import require_finite
from attnlab.store.atomic_files import open_user_file, parse_json, read_user_text
from attnlab.store.safe_paths import is_plain_name

WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"


LFS_POINTER = "a git-lfs pointer: fetch the file with `git lfs pull`"
_LFS_SIGNATURE = b"version https://git-lfs."


class ShardReader:
    """Context manager over the safetensors files of a folder.

    Tensor names have no `prefix`, because some writers omit it.
    """

    def __init__(self, folder: Path, prefix: str) -> None:
        self.folder = folder
        self.prefix = prefix
        self._files = ExitStack()
        self._entries: dict[str, tuple[Path, str, Any]] = {}

    def __enter__(self) -> "ShardReader":
        for path in self._list_paths():
            try:
                file = self._files.enter_context(safe_open(path, framework="pt"))
            except (SafetensorError, OSError) as error:
                self._files.close()
                if path.is_file() and is_lfs_pointer(path):
                    raise ValueError(f"{path} is {LFS_POINTER}") from None
                raise ValueError(
                    f"{path} cannot be read as safetensors: {_format_one_line(error)}"
                ) from error
            for name in file.keys():  # noqa: SIM118 - not a mapping
                short_name = name.removeprefix(self.prefix)
                if short_name in self._entries:
                    other_path, other_name, _ = self._entries[short_name]
                    self._files.close()
                    raise ValueError(
                        f"{path} has {name}, and {other_path.name} has {other_name}, which is the same "
                        "tensor: remove one of the two"
                    )
                self._entries[short_name] = (path, name, file)
        return self

    def __exit__(self, *error: object) -> None:
        self._files.close()

    def _list_paths(self) -> list[Path]:
        if (self.folder / WEIGHTS_FILE).exists():
            return [self.folder / WEIGHTS_FILE]
        if not (self.folder / INDEX_FILE).exists():
            raise ValueError(
                f"{self.folder} contains neither {WEIGHTS_FILE} nor {INDEX_FILE}; pickled weights are "
                "not supported"
            )
        weight_map = read_json_mapping(self.folder / INDEX_FILE).get("weight_map")
        names = sorted(map(str, weight_map.values())) if isinstance(weight_map, dict) else []
        if not names or not all(map(is_plain_name, names)):
            raise ValueError(f"{self.folder / INDEX_FILE} has no weight_map of files in the same folder")
        paths = [self.folder / name for name in dict.fromkeys(names)]
        missing = [path for path in paths if not path.is_file()]
        if missing:
            raise ValueError(
                f"{missing[0]} is missing, and {INDEX_FILE} names it (missing: {len(missing)} of "
                f"{len(paths)} files): download it again"
            )
        return paths

    @property
    def tensor_names(self) -> list[str]:
        """Names of all tensors, without the prefix."""
        return list(self._entries)

    def get_shape(self, name: str) -> tuple[int, ...]:
        """Read the shape of a tensor from the file's header."""
        _, stored_name, file = self._entries[name]
        return tuple(file.get_slice(stored_name).get_shape())

    def get_tensor(self, name: str) -> Tensor:
        """Read a tensor in the dtype of the file.

        Raises:
            ValueError: NaN or infinite values, an integer dtype, or a float below 16 bits: these are
                quantized weights, which are meaningless without their scales.
        """
        path, stored_name, file = self._entries[name]
        try:
            tensor: Tensor = file.get_tensor(stored_name)
        except SafetensorError as error:
            raise ValueError(f"{path} cannot be read as safetensors: {_format_one_line(error)}") from error
        if not tensor.is_floating_point() or tensor.dtype.itemsize < 2:
            raise ValueError(
                f"{path}: {stored_name} has dtype {tensor.dtype}: convert it to float32 or another "
                "float first"
            )
        require_finite([(stored_name, tensor)], path)
        return tensor


def read_json_mapping(path: Path) -> dict[str, Any]:
    """Read the mapping in a JSON file; ValueError with the file's name if there is none."""
    text = read_utf8(path)
    try:
        value = parse_json(text)
    except ValueError as error:
        raise ValueError(f"{path} is not valid json: {_format_one_line(error)}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path} does not contain a mapping")
    return value


def read_utf8(path: Path) -> str:
    """Read a text file without its byte-order mark; ValueError with the file's name if it cannot be read."""
    try:
        if is_lfs_pointer(path):
            raise ValueError(f"{path} is {LFS_POINTER}")
        return read_user_text(path, "utf-8-sig")
    except FileNotFoundError:
        raise ValueError(f"{path} is missing") from None
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise ValueError(
            f"{path} is not UTF-8 (byte {byte:#04x} at offset {error.start}): copy it again"
        ) from None


def is_lfs_pointer(path: Path) -> bool:
    """Whether a file is the text that git stores in place of a large file."""
    with open_user_file(path, None) as file:
        return file.read(len(_LFS_SIGNATURE)) == _LFS_SIGNATURE


def _format_one_line(error: Exception) -> str:
    return " ".join(str(error).split())
