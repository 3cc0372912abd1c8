"""Where `conf/` lives, which of its groups take several options, the arithmetic that its yaml may use, and
where the environment has the last word.

Imports nothing heavy: `--help` and `list` read it.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_PACKAGED = Path(__file__).parent / "conf"
CONF = _PACKAGED if _PACKAGED.is_dir() else Path(__file__).parent.parent / "conf"


ADDITIVE = ("logger", "callbacks")  # groups whose options stand beside each other in one run


def describe_mixture(written: str, group: str, value: Any) -> str | None:
    """The complaint about an override, as it was written, that gives a group a list of options: Hydra would
    lay them over each other in one run. None of another value, and of a group that takes several.
    """
    if not isinstance(value, list) or group in ADDITIVE or group.startswith("hydra/"):
        return None
    return f"{written}: a run has one option of {group}: {_advise(written.partition('=')[0], value)}"


def _advise(key: str, options: Sequence[Any]) -> str:
    if not options:
        return f"name it, as in {key}=OPTION"
    one = f"write {key}={options[0]}"
    swept = ",".join(map(str, options))
    return one if len(options) == 1 else f"{one} alone, or sweep on the command line with {key}={swept}"


def _divide(number: int, by: int) -> int:
    """Exact integer division, so that `gqa` of three heads is an error and not two heads."""
    if by < 1 or number % by:
        raise ValueError(f"{number} does not divide into {by} equal parts")
    return number // by


def _times(a: float, b: float) -> float:
    return a * b if isinstance(a, int) and isinstance(b, int) else float(f"{a * b:.12g}")


def wandb_mode(wanted: str | None, environment: Mapping[str, str] | None = None) -> str:
    """`logger.mode`, or WANDB_MODE over it, or `disabled` with WANDB_DISABLED. A mode that is disabled here
    stays so. W&B's older names of modes are read too.
    """
    if wanted in (None, "none", "disabled"):
        return "disabled"
    variables = os.environ if environment is None else environment
    if variables.get("WANDB_DISABLED", "").lower() in ("1", "t", "true", "y", "yes"):
        return "disabled"
    mode = variables.get("WANDB_MODE") or str(wanted)
    return {"dryrun": "offline", "run": "online"}.get(mode, mode)


def register_resolvers() -> None:
    """`${divide:a,b}` (exact), `${times:a,b}` (to 12 digits), `${eights:a,b}` (a * b to the nearest multiple
    of 8) for yaml. Safe to call again.
    """
    from omegaconf import OmegaConf

    OmegaConf.register_new_resolver("divide", _divide, replace=True)
    OmegaConf.register_new_resolver("times", _times, replace=True)
    OmegaConf.register_new_resolver("eights", lambda a, b: max(8, 8 * round(a * b / 8)), replace=True)
