"""Model-size ladder: the sizes at which an experiment is run, from smallest to largest."""

from pydantic import ConfigDict, Field, FiniteFloat

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
        min_length=1, description="Hydra overrides of all arms at each ladder size, smallest size first."
    )
    overrides: list[str] = Field(
        [], description="Hydra overrides of all arms at every ladder size, applied first."
    )
    seeds: dict[str, int] = Field(
        description=(
            "Number of seeds at each ladder size: the first seeds of the experiment, plus 1000 per size."
        )
    )
    rates: LearningRateScaling | None = Field(
        None,
        description="Scaling of learning rates between ladder sizes; null: each size is tuned separately.",
    )
    margin: FiniteFloat = Field(
        gt=0, description="Largest irrelevant difference at every ladder size, in the unit of the metric."
    )
    margin_reason: str = Field(description="Rationale of the margin, written before the first run.")
