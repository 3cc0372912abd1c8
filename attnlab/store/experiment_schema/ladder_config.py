"""Ladder: the model sizes or the training budgets at which an experiment is run, the smallest first."""

import operator
from typing import Self

from pydantic import ConfigDict, Field, FiniteFloat, model_validator

from attnlab.store.run_schema import FrozenModel


class LearningRateScaling(FrozenModel):
    """Power-law scaling of learning rates along a ladder.

    Each arm's learning rate is tuned at one rung. At the others it is multiplied by a power of the ratio of
    the baseline's training FLOPs.
    """

    model_config = ConfigDict(strict=True)

    rung: str = Field(description="Ladder size at which learning rates are tuned.")
    power: FiniteFloat = Field(description="Exponent of the ratio of training FLOPs, as in -0.125.")


class LadderConfig(FrozenModel):
    """A value of the config group `ladder`."""

    model_config = ConfigDict(strict=True)

    name: str = Field(
        description="Name of the ladder, equal to the file name; reports are in the folder EXPERIMENT@NAME."
    )
    rungs: dict[str, list[str]] = Field(
        {},
        exclude_if=operator.not_,
        description="Hydra overrides of all arms at each ladder size, smallest size first.",
    )
    budgets: dict[str, FiniteFloat] = Field(
        {},
        exclude_if=operator.not_,
        description=(
            "In place of rungs: multiples of the experiment's steps, smallest first. The model stays the "
            "same."
        ),
    )
    overrides: list[str] = Field(
        [], description="Hydra overrides of all arms at every ladder size, applied first."
    )
    seeds: dict[str, int] = Field(
        description=(
            "Number of seeds at each ladder size: the first seeds of the experiment, plus 1000 per size. All "
            "budgets have the same seeds: the first ones, plus 10000."
        )
    )
    rates: LearningRateScaling | None = Field(
        None,
        description="Scaling of learning rates between ladder sizes; null: each size is tuned separately.",
    )
    margin: FiniteFloat = Field(
        gt=0,
        description=(
            "Largest irrelevant difference at every ladder size, in the unit of the metric. With budgets, "
            "only for experiments whose own margin is no number."
        ),
    )
    margin_reason: str = Field(description="Rationale of the margin, written before the first run.")

    @property
    def names(self) -> list[str]:
        """The names of its sizes or budgets, smallest first."""
        return list(self.rungs or self.budgets)

    @property
    def step_name(self) -> str:
        """What its steps are called: size or budget."""
        return "budget" if self.budgets else "size"

    @model_validator(mode="after")
    def _require_rungs_or_budgets(self) -> Self:
        if bool(self.rungs) == bool(self.budgets):
            raise ValueError("give rungs (model sizes) or budgets (multiples of the steps), not both")
        multiples = list(self.budgets.values())
        if multiples != sorted(set(multiples)) or any(multiple <= 0 for multiple in multiples):
            raise ValueError("budgets must be multiples above 0, each larger than the one before")
        if self.budgets and len(set(self.seeds.values())) > 1:
            raise ValueError("all budgets need the same number of seeds: each seed is followed over them")
        return self
