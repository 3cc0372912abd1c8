"""Conversion of exceptions raised while building from a config, which is their cause, into one line."""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException


@contextmanager
def convert_build_errors(part: str) -> Iterator[None]:
    """Convert exceptions raised within the context; validation errors pass unchanged.

    Raises:
        ValueError: One line with `part`, the error and its source line.
    """
    try:
        yield
    except (ValueError, HydraException, OmegaConfBaseException):
        raise
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        first_line = next(iter(str(error).strip().splitlines()), "")
        raise ValueError(
            f"{part} cannot be built from its config: {type(error).__name__}: {first_line} "
            f"({Path(frame.filename).name}, line {frame.lineno})"
        ) from error
