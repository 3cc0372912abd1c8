"""Location of `conf/`, paths from the home folder, Hydra overrides, resolvers, W&B variables.

Imports nothing heavy, because `--help` and `list` import it.
"""

import filecmp
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_PACKAGED_CONF = Path(__file__).parent / "conf"
CONF = _PACKAGED_CONF if _PACKAGED_CONF.is_dir() else Path(__file__).parent.parent / "conf"


_HOME = re.compile(r"(^|[=,\[]|: )(['\"]?)~(?=/)")  # at the start of a path; `~KEY` deletes a key in Hydra
_FREE_TEXT_KEYS = ("prompt", "text", "stop")  # of verbs: no paths


def expand_home(word: str) -> str:
    """Replace `~/` at the start of each path in a word of a command line or a value of a config file.

    The shell does so only for whole words.
    """
    if word.partition("=")[0] in _FREE_TEXT_KEYS:
        return word
    home = os.path.expanduser("~")
    return _HOME.sub(lambda match: match[1] + match[2] + home, word)


MULTI_OPTION_GROUPS = ("logger", "callbacks")  # groups of which one run may combine several options


def describe_option_conflict(override: str, group: str, value: Any) -> str | None:
    """Describe the error in an override that gives a config group a list of options.

    Hydra would merge the options into one run. Returns None for any other value and for a group that takes
    several options.
    """
    if not isinstance(value, list) or group in MULTI_OPTION_GROUPS or group.startswith("hydra/"):
        return None
    return (
        f"{override}: a run takes one option of {group}: "
        f"{_suggest_override(override.partition('=')[0], value)}"
    )


def _suggest_override(group: str, options: Sequence[Any]) -> str:
    if not options:
        return f"write {group}=OPTION"
    single_option = f"write {group}={options[0]}"
    option_list = ",".join(map(str, options))
    return (
        single_option
        if len(options) == 1
        else f"{single_option} alone, or sweep on the command line with {group}={option_list}"
    )


def describe_hidden_file(config: str, folders: Sequence[Path]) -> str | None:
    """Describe a file that Hydra would ignore, since an earlier folder has one of the same name.

    Returns None if there is none, or its content is equal.

    Args:
        config: Name of an option, as in "mask/window".
        folders: Folders of config groups in the order in which Hydra searches them.
    """
    option = config.removesuffix(".yaml")
    files = [file for folder in folders if (file := folder / f"{option}.yaml").is_file()]
    for file in files[1:]:
        if not filecmp.cmp(file, files[0], shallow=False):
            return (
                f"{file}: {'='.join(option.rsplit('/', 1))} is in {files[0].parents[option.count('/')]} too, "
                "which would be used: rename the file"
            )
    return None


def format_search_path(folder: Path) -> str:
    """Format the override that adds a folder of config groups, whatever characters its name has."""
    from hydra.core.override_parser.types import Quote, QuotedString

    return f"hydra.searchpath=[{QuotedString(f'file://{folder.resolve()}', Quote.single).with_quotes()}]"


def _divide(number: int, divisor: int) -> int:
    """Divide integers exactly, so that `gqa` with an odd number of heads is an error."""
    if divisor < 1 or number % divisor:
        raise ValueError(f"{number} is not divisible by {divisor}: choose a multiple of {divisor}")
    return number // divisor


def _count_groups(number: int, size: int) -> int:
    """Return the most equal groups, at least one, that `number` heads form with `size` or more in each."""
    return max(n for n in range(1, max(1, number // max(1, size)) + 1) if number % n == 0)


def _take_last(count: int, members: Any) -> Any:
    """Return the last members of a list node, resolved: a new node cannot resolve references."""
    from omegaconf import OmegaConf

    resolved: Any = OmegaConf.to_container(members, resolve=True)
    return OmegaConf.create(resolved[-count:])


def _multiply(a: float, b: float) -> float:
    return a * b if isinstance(a, int) and isinstance(b, int) else float(f"{a * b:.12g}")


def resolve_wandb_mode(configured_mode: str | None, environment: Mapping[str, str] | None = None) -> str:
    """Resolve `logger.mode` against the environment.

    WANDB_MODE overrides the configured mode, and WANDB_DISABLED disables it. A mode disabled in the config
    stays disabled. W&B's older mode names (`dryrun`, `run`) are accepted too.
    """
    if configured_mode in (None, "none", "disabled"):
        return "disabled"
    variables = os.environ if environment is None else environment
    if variables.get("WANDB_DISABLED", "").lower() in ("1", "t", "true", "y", "yes"):
        return "disabled"
    mode = variables.get("WANDB_MODE") or str(configured_mode)
    return {"dryrun": "offline", "run": "online"}.get(mode, mode)


def register_resolvers() -> None:
    """Register the yaml resolvers; idempotent.

    `${divide:a,b}` divides exactly, `${times:a,b}` multiplies to 12 digits, and `${eights:a,b}` rounds a * b
    to the nearest multiple of 8. `${min:a,b}` is the smaller number, `${groups:a,b}` the largest divisor of a
    up to a / b, at least 1, and `${last:n,list}` the last n members of a list, or all.
    """
    from omegaconf import OmegaConf

    OmegaConf.register_new_resolver("divide", _divide, replace=True)
    OmegaConf.register_new_resolver("groups", _count_groups, replace=True)
    OmegaConf.register_new_resolver("last", _take_last, replace=True)
    OmegaConf.register_new_resolver("min", min, replace=True)
    OmegaConf.register_new_resolver("times", _multiply, replace=True)
    OmegaConf.register_new_resolver("eights", lambda a, b: max(8, 8 * round(a * b / 8)), replace=True)
