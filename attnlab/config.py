"""Where `conf/` lives, the arithmetic that its yaml may use, and where the environment has the last word.

Imports nothing heavy: `--help` and `list` read it.
"""

import os
from pathlib import Path

_PACKAGED = Path(__file__).parent / "conf"
CONF = _PACKAGED if _PACKAGED.is_dir() else Path(__file__).parent.parent / "conf"


def _divide(number: int, by: int) -> int:
    """Exact integer division, so that `gqa` of three heads is an error and not two heads."""
    if by < 1 or number % by:
        raise ValueError(f"{number} does not divide into {by} equal parts")
    return number // by


def _times(a: float, b: float) -> float:
    return a * b if isinstance(a, int) and isinstance(b, int) else float(f"{a * b:.12g}")


def wandb_mode(wanted: str | None) -> str | None:
    """`logger.mode`, or `WANDB_MODE` over it, as W&B's users expect; what is disabled here stays so."""
    return os.environ.get("WANDB_MODE", wanted) if wanted in ("offline", "online") else wanted


def register_resolvers() -> None:
    """`${divide:a,b}` (exact), `${times:a,b}` (to 12 digits), `${eights:a,b}` (a * b to the nearest multiple
    of 8) for yaml. Safe to call again.
    """
    from omegaconf import OmegaConf

    OmegaConf.register_new_resolver("divide", _divide, replace=True)
    OmegaConf.register_new_resolver("times", _times, replace=True)
    OmegaConf.register_new_resolver("eights", lambda a, b: max(8, 8 * round(a * b / 8)), replace=True)
