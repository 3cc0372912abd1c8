"""An experiment asked once more: of another text, or at a rung of a ladder. Each is a comparison of its own,
with runs, looks and a report of its own; what they say together is on a page of theirs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from attnlab.errors import Refused
from attnlab.report.schema import Place
from attnlab.store.declarations import Ladder
from attnlab.sweep.plan import overrides as command
from attnlab.sweep.plan.replications import rungs


@dataclass(frozen=True)
class Replication:
    """`name` is the text's or the rung's, `called` what the title ends with, `ladder` that of a rung.
    `overrides` come before those of the command line, and `keys` stand in the place of the experiment's own.
    """

    name: str
    called: str
    overrides: tuple[str, ...] = ()
    keys: Mapping[str, Any] = field(default_factory=dict)
    ladder: Ladder | None = None

    def told(self, together: str) -> Place:
        """As the report has it; `together` is the title of all places."""
        return Place(
            kind="rung" if self.ladder else "text",
            name=self.name,
            together=together,
            ladder=self.ladder,
            rates=self.rates,
        )

    @property
    def where(self) -> str:
        """What a refusal of an arm begins with."""
        return f"rung {self.name} of {self.ladder.name}: " if self.ladder else f"data={self.name}: "

    @property
    def together(self) -> str:
        """What the title of all places together ends with."""
        return f"@{self.ladder.name}" if self.ladder else ""

    @property
    def rates(self) -> str | None:
        """The rung whose learning rates it takes; None where it has its own."""
        rates = self.ladder.rates if self.ladder else None
        return rates.rung if rates and rates.rung != self.name else None


def replications(
    base: Mapping[str, Any], point: Sequence[str], declared: Sequence[Any] | None
) -> list[Replication | None]:
    """Where a composed command asks its experiment: None is the place that its config names itself. The first
    text that its file declares has the experiment's own report, whichever texts the command asks.
    """
    given = command.keys(point)
    texts = base.get("texts")
    if "arms" not in base:
        return [None]
    if base.get("ladder") is not None:
        ladder = rungs.read(base["ladder"], given)
        base = {**base, "ladder_arms": None} if "arms" in given else base
        return [
            Replication(
                name,
                f"@{ladder.name}.{name}",
                (*ladder.overrides, *own),
                rungs.keys(base, ladder, name),
                ladder,
            )
            for name, own in ladder.rungs.items()
        ]
    if not texts or "data" in given:  # the command names its own
        return [None]
    if not isinstance(texts, list) or len(set(map(str, texts))) < len(texts):
        raise Refused(
            f"texts={texts}: give values of the group data, each once, as in [pydocs, code]", ("texts",)
        )
    own = str(declared[0]) if declared else None
    return [
        Replication(name, "" if name == own else f"@{name}", (f"data={name}",)) for name in map(str, texts)
    ]
