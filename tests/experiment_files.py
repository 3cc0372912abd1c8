"""Shipped experiment files as tests read them: the short forms of their claims are written out."""

from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from attnlab.store.experiment_schema import expand_claims


def load_expanded(path: Path) -> Any:
    """Load an experiment file as a config, with the claims and arms that its short forms give."""
    experiment = OmegaConf.load(path)
    raw = OmegaConf.to_container(experiment, resolve=False)
    overrides = {arm: lines or [] for arm, lines in raw["arm_overrides"].items()}
    expanded = expand_claims(raw.get("claims", []), raw["arms"], overrides, raw["baseline"])
    if expanded.claims != raw.get("claims", []):
        experiment.claims = expanded.claims
        experiment.arms = expanded.arms
        experiment.arm_overrides = expanded.arm_overrides
    return experiment


def list_claim_arms(claim: Any, baseline: str) -> list[str]:
    """List the arms of a written-out claim."""
    return list(claim.get("contrast") or (claim.arm, claim.get("against") or baseline))
