"""The swept keys of a command without an experiment, crossed: its axes, and a cell per combination."""

from collections.abc import Mapping, Sequence

from pydantic import Field

from attnlab.store.run_schema import FrozenModel


class SweptGrid(FrozenModel):
    """Axes of a sweep and their combinations.

    Attributes:
        axes: Values of each swept key, in the order of the command line.
        cells: Value of each axis, by the name of the combination (its arm).
        rejected: Reason why a combination cannot be trained, by its name; such a cell has no run.
    """

    axes: dict[str, tuple[str, ...]]
    cells: dict[str, tuple[str, ...]]
    rejected: dict[str, str] = Field(default_factory=dict)

    @classmethod
    def from_arms(cls, arm_overrides: Mapping[str, Sequence[str]]) -> "SweptGrid":
        """Return the grid of arms that override the same keys, each with one value per key."""
        values: dict[str, dict[str, None]] = {}
        cells = {}
        for arm, lines in arm_overrides.items():
            pairs = [line.lstrip("+").partition("=") for line in lines]
            for key, _, value in pairs:
                values.setdefault(key, {})[value] = None
            cells[arm] = tuple(value for _, _, value in pairs)
        return cls(axes={key: tuple(options) for key, options in values.items()}, cells=cells)

    @property
    def short_names(self) -> dict[str, str]:
        """The last part of each swept key, or the whole key where two have the same last part."""
        last_parts = [key.rpartition(".")[2] for key in self.axes]
        return {
            key: key if last_parts.count(part) > 1 else part
            for key, part in zip(self.axes, last_parts, strict=True)
        }

    @property
    def swept_overrides(self) -> tuple[str, ...]:
        """The swept keys as on a command line: `heads=mha,gqa`."""
        return tuple(f"{key}={','.join(values)}" for key, values in self.axes.items())

    def find_rejected_option(self) -> str | None:
        """Return a rejected cell with an option that no other combination makes valid, if there is one."""
        usable = [cell for arm, cell in self.cells.items() if arm not in self.rejected]
        for arm in self.rejected:
            for position, value in enumerate(self.cells[arm]):
                if not any(cell[position] == value for cell in usable):
                    return arm
        return None

    def describe_rejections(self) -> list[str]:
        """Describe each combination without a run in a line."""
        return [f"{arm} is not trained: {reason}" for arm, reason in self.rejected.items()]
