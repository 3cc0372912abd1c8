"""Types of the section `grid` of report.json: the crossed axes of a sweep without an experiment."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from attnlab.store.run_schema import Direction, FrozenModel

CellState = Literal["TRAINED", "UNTRAINED", "NOT COMPARABLE", "NO RESULT"]
FORMER_KEYS = ("rows", "columns", "panels", "averaged", "variance", "variance_note")
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


class GridSection(FrozenModel):
    """The crossed axes of a sweep, its cells and main effects.

    - `digits`: decimals that the spread over seeds justifies
    - `best`: the best cell; None without one, and `best_note` explains the choice or its absence
    """

    metric: str
    label: str
    unit: str
    direction: Direction
    digits: Decimals
    axes: list[GridAxis]
    cells: list[GridCell]
    best: str | None
    best_note: str

    @model_validator(mode="before")
    @classmethod
    def _omit_former_keys(cls, content: Any) -> Any:
        """Omit the layout and the shares of variance of earlier reports."""
        if not isinstance(content, dict):
            return content
        return {key: value for key, value in content.items() if key not in FORMER_KEYS}

    @model_validator(mode="after")
    def _find_best_cell(self) -> Self:
        if self.best is not None and self.find_cell(self.best) is None:
            raise ValueError(f"best names no cell: {self.best}")
        return self

    def find_cell(self, arm: str) -> GridCell | None:
        """Return the cell of an arm; None if there is none."""
        return next((cell for cell in self.cells if cell.arm == arm), None)
