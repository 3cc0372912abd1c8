"""Types of noise.json: the spread of an experiment's metric by source, as `attnlab noise` measures it."""

from pathlib import Path
from typing import Literal

from pydantic import FiniteFloat

from attnlab.store.atomic_files import read_json_object
from attnlab.store.run_schema import FrozenModel

NOISE_FILE = "noise.json"


class DetectableEffect(FrozenModel):
    """The smallest effect that `seeds` paired seeds detect with the power of the report.

    `single` is at the alpha of a claim that is alone in its family, `holm` at that of the first of Holm's
    steps. `minutes` is the training time of all arms.
    """

    seeds: int
    single: FiniteFloat
    holm: FiniteFloat
    minutes: FiniteFloat


class NoiseSources(FrozenModel):
    """Standard deviations of an arm, or of a difference between arms, in the metric's unit.

    - `weights`: weight of each arm, 1 for a single arm
    - `initialization`, `data_order`, `rest`: of one run; `truncated` names those whose estimate is negative
    - `sd`: of one run with all of these, with its `df` and its interval [`low`, `high`] at 95%
    - `evaluation`: standard error over the validation windows, which more seeds do not lower; None if unknown
    """

    name: str
    weights: dict[str, float]
    mean: FiniteFloat
    initialization: FiniteFloat
    data_order: FiniteFloat
    rest: FiniteFloat
    truncated: list[str]
    sd: FiniteFloat
    low: FiniteFloat
    high: FiniteFloat
    df: FiniteFloat
    evaluation: FiniteFloat | None


class DifferenceNoise(NoiseSources):
    """The noise of a difference that claims are about, and what it means for them.

    `seeds_for_margin` shows equal arms to be equivalent with the power of the report; None for more than
    10,000, or without a margin. `thresholds` are those of the claims.
    """

    detectable: list[DetectableEffect]
    seeds_for_margin: int | None
    thresholds: list[float]


class NoiseReport(FrozenModel):
    """Noise of one experiment at one size and corpus.

    - `levels`: number of initialization seeds, and of data-order seeds; `seeds` are those of both
    - `margin`: in the metric's unit; None if its compute calibration is not finished
    - `config_digests`: config of each arm without its seeds, which decides where these numbers apply
    - `seconds`: mean training time of a run, by arm
    """

    version: Literal[1] = 1
    experiment: str
    title: str
    size: str | None
    metric: str
    unit: str
    levels: int
    seeds: list[int]
    arms: list[NoiseSources]
    differences: list[DifferenceNoise]
    margin: FiniteFloat | None
    margin_text: str
    power: float
    alpha: float
    family: int
    config_digests: dict[str, str]
    runs: list[str]
    seconds: dict[str, float]
    slots: int
    command: str


def load_noise_reports(reports: Path) -> dict[Path, NoiseReport]:
    """Load every readable noise.json of a reports folder; others, and later versions, are skipped."""
    loaded = {}
    for path in sorted(reports.glob(f"*/{NOISE_FILE}")):
        content = read_json_object(path)
        if content.get("version") == 1:
            loaded[path] = NoiseReport.model_validate(content)
    return loaded
