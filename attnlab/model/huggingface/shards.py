"""The tensors of a checkpoint folder: one safetensors file, or several with an index.

Pickled weights are refused, because to read one is to run it.
"""

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"


class Shards:
    """A context manager over a folder. Names are without `prefix`, which some writers leave out.

    ValueError, naming the file, where it cannot be read.
    """

    def __init__(self, folder: Path, prefix: str) -> None:
        self.folder = folder
        self.prefix = prefix
        self._files = ExitStack()
        self._found: dict[str, tuple[Path, str, Any]] = {}

    def __enter__(self) -> "Shards":
        for path in self._paths():
            try:
                file = self._files.enter_context(safe_open(path, framework="pt"))
            except (SafetensorError, OSError) as error:
                self._files.close()
                raise ValueError(f"{path} cannot be read as safetensors: {_line(error)}") from error
            for name in file.keys():  # noqa: SIM118 - it is no mapping
                self._found[name.removeprefix(self.prefix)] = (path, name, file)
        return self

    def __exit__(self, *error: object) -> None:
        self._files.close()

    def _paths(self) -> list[Path]:
        if (self.folder / WEIGHTS).exists():
            return [self.folder / WEIGHTS]
        if not (self.folder / INDEX).exists():
            raise ValueError(
                f"{self.folder} holds neither {WEIGHTS} nor {INDEX}; pickled weights are not read"
            )
        places = read_mapping(self.folder / INDEX).get("weight_map")
        names = sorted(map(str, places.values())) if isinstance(places, dict) else []
        if not names or any(Path(name).name != name for name in names):
            raise ValueError(f"{self.folder / INDEX} has no weight_map that names files beside it")
        return [self.folder / name for name in dict.fromkeys(names)]

    @property
    def names(self) -> list[str]:
        """What the files hold, prefix removed."""
        return list(self._found)

    def shape(self, name: str) -> tuple[int, ...]:
        """Of one tensor, from the file's header."""
        _, stored, file = self._found[name]
        return tuple(file.get_slice(stored).get_shape())

    def tensor(self, name: str) -> Tensor:
        """One tensor, in the dtype of the file. ValueError for whole numbers and floats below 16 bits: they
        were quantised, and mean something else without their scales.
        """
        path, stored, file = self._found[name]
        try:
            tensor: Tensor = file.get_tensor(stored)
        except SafetensorError as error:
            raise ValueError(f"{path} cannot be read as safetensors: {_line(error)}") from error
        if not tensor.is_floating_point() or tensor.dtype.itemsize < 2:
            raise ValueError(
                f"{path}: {stored} holds {tensor.dtype}: write it as float32 or another float first"
            )
        return tensor


def read_mapping(path: Path) -> dict[str, Any]:
    """The mapping in a json file; ValueError, naming the file, where there is none."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{path} is missing") from None
    except ValueError as error:
        raise ValueError(f"{path} is not valid json: {_line(error)}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path} holds no mapping")
    return value


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
