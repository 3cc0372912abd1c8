"""Options of your own in `conf/` of the current folder, which only `--config-dir conf` adds to attnlab's."""

from collections.abc import Sequence
from pathlib import Path

from attnlab.config import CONF, format_search_path
from attnlab.errors import InvalidConfig

OWN_CONF = Path("conf")
REMEDY = f"add --config-dir {OWN_CONF}"
MAX_NAMES = 5  # in one line


def resolve_config_dir(folder: str | None) -> list[Path]:
    """Return the folder of a verb's `--config-dir`, or nothing without the flag.

    Raises:
        InvalidConfig: The folder does not exist.
    """
    if folder is None:
        return []
    if not Path(folder).is_dir():
        raise InvalidConfig(f"--config-dir {folder}: folder not found: give an existing one")
    return [Path(folder)]


def list_search_path(config_dir: str | None) -> list[str]:
    """Return the override that adds the folder of `--config-dir`, or nothing without the flag.

    Raises:
        InvalidConfig: The folder does not exist.
    """
    return [format_search_path(folder) for folder in resolve_config_dir(config_dir)]


def format_own_option(group: str, option: str, config_dirs: Sequence[Path]) -> str:
    """Format a hint to append to an error about an unknown option: its file in `conf/` and the missing flag.

    Empty if there is no such file, or if `config_dirs` (as of `list_config_dirs`) has a folder of the user.
    """
    file = OWN_CONF / group / f"{option}.yaml"
    return f": {file} exists: {REMEDY}" if _is_overlooked(config_dirs) and file.is_file() else ""


def format_own_options() -> str:
    """Format a line about the options that `conf/` has and attnlab lacks; empty if there are none."""
    files = sorted(OWN_CONF.glob("*/**/*.yaml")) if _is_overlooked([CONF]) else []
    names = [file.relative_to(OWN_CONF).with_suffix("") for file in files]
    own = [name.as_posix() for name in names if not (CONF / f"{name}.yaml").exists()]
    more = f" and {len(own) - MAX_NAMES} more" if own[MAX_NAMES:] else ""
    return f"not listed: {', '.join(own[:MAX_NAMES])}{more} in {OWN_CONF}: {REMEDY}" if own else ""


def _is_overlooked(config_dirs: Sequence[Path]) -> bool:
    """Whether the folders contain none of the user, and `conf/` is not attnlab's own."""
    known = {folder.resolve() for folder in (CONF, *config_dirs)}
    return len(config_dirs) < 2 and OWN_CONF.resolve() not in known
