"""Types of the section `grid` of report.json: the crossed axes of a sweep without an experiment."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from attnlab.store.run_schema import Direction, FrozenModel

CellState = Literal["TRAINED", "UNTRAINED", "NOT COMPARABLE", "NO RESULT"]
ComponentKind = Literal["axis", "interaction", "higher", "seed", "noise"]
Decimals = Annotated[int, Field(ge=0, le=20)]  # shown after the point


class GridCell(FrozenModel):
    """A combination of options: mean and standard deviation of the metric over its `n` finished runs.

    `reason` explains every state but TRAINED; with NO RESULT it explains the empty cell.
    """

    arm: str
    options: list[str]
    mean: float | None
    sd: float | None
    n: int
    planned: int
    state: CellState
    reason: str


class OptionEffect(FrozenModel):
    """An option averaged over all other axes; its difference is to the first option of the axis.

    `low` and `high` are the smallest and largest difference over the combinations of the other axes.
    """

    option: str
    mean: float
    difference: float
    low: float
    high: float


class GridAxis(FrozenModel):
    """A swept key with its options.

    The effects average the same `blocks` for every option: combinations of the other axes, times seeds.
    `options` lists all options, `reason` why there are no effects.
    """

    key: str
    name: str
    options: list[str]
    effects: list[OptionEffect]
    combinations: int
    blocks: int
    reason: str


class VarianceShare(FrozenModel):
    """The part of the variance of all runs that axes account for, and the part expected from noise alone."""

    kind: ComponentKind
    axes: list[str]
    df: int
    share: float
    share_by_noise: float | None


class VarianceSection(FrozenModel):
    """Shares of variance over a balanced part of the grid; `note` describes the part that is left out."""

    cells: int
    seeds: list[int]
    shares: list[VarianceShare]
    note: str


class GridSection(FrozenModel):
    """The crossed axes of a sweep, its cells, main effects and shares of variance.

    - `digits`: decimals that the spread over seeds justifies
    - `rows`, `columns`: keys of the axes that span the grid; one axis has no columns
    - `panels`: keys of further axes, with a grid per combination; `averaged`: keys averaged in each cell
    - `best`: the best cell; None without one, and `best_note` explains the choice or its absence
    - `variance_note`: reason why there are no shares of variance
    """

    metric: str
    label: str
    unit: str
    direction: Direction
    digits: Decimals
    axes: list[GridAxis]
    cells: list[GridCell]
    rows: str
    columns: str | None
    panels: list[str]
    averaged: list[str]
    best: str | None
    best_note: str
    variance: VarianceSection | None
    variance_note: str

    @model_validator(mode="after")
    def _find_named_parts(self) -> Self:
        named_axes = {self.rows, self.columns, *self.panels, *self.averaged} - {None}
        if missing := named_axes - {axis.key for axis in self.axes}:
            raise ValueError(f"axes lacks {', '.join(sorted(map(str, missing)))}")
        if self.best is not None and self.find_cell(self.best) is None:
            raise ValueError(f"best names no cell: {self.best}")
        return self

    def get_axis(self, key: str) -> GridAxis:
        """Return the axis of a swept key."""
        return next(axis for axis in self.axes if axis.key == key)

    def find_cell(self, arm: str) -> GridCell | None:
        """Return the cell of an arm; None if there is none."""
        return next((cell for cell in self.cells if cell.arm == arm), None)
