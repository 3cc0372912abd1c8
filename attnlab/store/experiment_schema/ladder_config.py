"""Model-size ladder: the sizes at which an experiment is run, from smallest to largest."""

from pydantic import ConfigDict, Field, FiniteFloat

from attnlab.store.run_schema import FrozenModel


class LearningRateScaling(FrozenModel):
    """Power-law scaling of learning rates along a ladder.

    Each arm's learning rate is tuned at one rung. At the others it is multiplied by a power of the ratio of
    the baseline's training FLOPs.
    """

    model_config = ConfigDict(strict=True)

    rung: str = Field(description="Where the rates are tuned.")
    power: FiniteFloat = Field(description="Of the ratio of training FLOPs, as in -0.125.")


class LadderConfig(FrozenModel):
    """A value of the config group `ladder`."""

    model_config = ConfigDict(strict=True)

    name: str = Field(description="As the file is called; the report's folder is NAME@it.")
    rungs: dict[str, list[str]] = Field(
        min_length=1, description="Rung: what all arms set at it, as Hydra overrides. The smallest first."
    )
    overrides: list[str] = Field([], description="What all arms set at every rung, before that.")
    seeds: dict[str, int] = Field(
        description="Rung: how many seeds it has: the experiment's first, and 1000 more from rung to rung."
    )
    rates: LearningRateScaling | None = Field(
        None, description="How learning rates go from rung to rung; null: each rung is tuned by itself."
    )
    margin: FiniteFloat = Field(
        gt=0, description="The largest difference that does not matter at any rung, in the metric's unit."
    )
    margin_reason: str = Field(description="Why; written before the first run.")
