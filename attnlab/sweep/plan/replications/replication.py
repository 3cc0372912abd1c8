"""Replications: an experiment on another corpus or at another ladder size.

Each replication is a comparison of its own, with its own runs, interim analyses and report. A further report
combines them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from attnlab.errors import InvalidConfig
from attnlab.report.schema import ReplicationContext
from attnlab.store.experiment_schema import LadderConfig
from attnlab.sweep.plan.overrides import index_by_key
from attnlab.sweep.plan.replications import ladder_plan


@dataclass(frozen=True)
class Replication:
    """An experiment on one corpus or at one ladder size, or its own if the name is empty.

    `name` is the corpus or the size, `title_suffix` ends the report's title, `ladder` is None for a corpus.
    `overrides` come before those of the command line, `last_overrides` after them; `keys` replace the
    experiment's own.
    """

    name: str
    title_suffix: str
    overrides: tuple[str, ...] = ()
    keys: Mapping[str, Any] = field(default_factory=dict)
    ladder: LadderConfig | None = None
    last_overrides: tuple[str, ...] = ()

    @property
    def is_own(self) -> bool:
        """Whether it is the experiment at its own corpus and size, and no replication."""
        return not self.name

    def make_place(self, group_title: str) -> ReplicationContext | None:
        """Return the replication as the report stores it, None for the experiment's own.

        `group_title` names the combined report.
        """
        if self.is_own:
            return None
        return ReplicationContext(
            kind="rung" if self.ladder else "corpus",
            name=self.name,
            combined_report=group_title,
            ladder=self.ladder,
            rates=self.rate_source,
        )

    @property
    def error_prefix(self) -> str:
        """The start of an error message about an arm."""
        if self.ladder is None:
            return "" if self.is_own else f"data={self.name}: "
        return f"{self.ladder.step_name} {self.name} of ladder {self.ladder.name}: "

    @property
    def group_suffix(self) -> str:
        """The end of the title of the combined report."""
        return f"@{self.ladder.name}" if self.ladder else ""

    @property
    def rate_source(self) -> str | None:
        """The ladder size whose tuned learning rates this size transfers; None if it has its own."""
        rates = self.ladder.rates if self.ladder else None
        return rates.rung if rates and rates.rung != self.name else None


OWN_REPLICATION = Replication("", "")  # the corpus and size that the experiment itself names


def plan_replications(
    base: Mapping[str, Any], point: Sequence[str], declared: Sequence[Any] | None
) -> list[Replication]:
    """Return the replications of a composed command, or just `OWN_REPLICATION`.

    The first corpus that the experiment file declares has the experiment's own report, whichever corpora the
    command selects.
    """
    line_by_key = index_by_key(point)
    corpora = base.get("corpora")
    if "arms" not in base:
        return [OWN_REPLICATION]
    if base.get("ladder") is not None:
        ladder = ladder_plan.parse_ladder(base["ladder"], line_by_key)
        base = {**base, "ladder_arms": None} if "arms" in line_by_key else base
        return [
            Replication(
                name,
                f"@{ladder.name}.{name}",
                (*ladder.overrides, *ladder.rungs.get(name, ())),
                ladder_plan.make_size_keys(base, ladder, name),
                ladder,
                tuple(ladder_plan.multiply_steps(base, ladder, name)) if ladder.budgets else (),
            )
            for name in ladder.names
        ]
    if not corpora or "data" in line_by_key:  # the command names its own data
        return [OWN_REPLICATION]
    if not isinstance(corpora, list) or len(set(map(str, corpora))) < len(corpora):
        raise InvalidConfig(
            f"corpora={corpora}: list options of the group data, each once, as in [pydocs, code]",
            ("corpora",),
        )
    first_corpus = str(declared[0]) if declared else None
    return [
        Replication(name, "" if name == first_corpus else f"@{name}", (f"data={name}",))
        for name in map(str, corpora)
    ]
