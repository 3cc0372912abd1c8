"""What fails while it is built from a config is the config's doing, and told in one line with its place."""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException


@contextmanager
def building(part: str) -> Iterator[None]:
    """ValueError, one line that names the part, for whatever is raised within; refusals pass as they are."""
    try:
        yield
    except (ValueError, HydraException, OmegaConfBaseException):
        raise
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        told = next(iter(str(error).strip().splitlines()), "")
        raise ValueError(
            f"{part} cannot be built of its values: {type(error).__name__}: {told} "
            f"({Path(where.filename).name}, line {where.lineno})"
        ) from error
