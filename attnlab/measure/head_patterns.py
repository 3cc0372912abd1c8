"""Names of head patterns by fixed rules over head scores: a head has every name whose rule it meets.

A score must also exceed that of uniform attention, because a short text makes every head local.
"""

from collections.abc import Mapping
from typing import NamedTuple


class PatternRule(NamedTuple):
    """A head has the pattern if its `score` is above `threshold`."""

    score: str
    threshold: float
    description: str


PATTERN_RULES = {
    "induction": PatternRule(
        "induction", 0.3, "more than 0.3 of its attention goes to tokens that followed earlier copies"
    ),
    "copying": PatternRule("copying", 0.0, "more than half of the logit increase goes to the attended token"),
    "positional": PatternRule(
        "positional", 0.9, "more than 90% of its rows have their maximum at one offset"
    ),
    "local": PatternRule("local", 0.7, "more than 0.7 of its attention stays in the last 8 tokens"),
    "sink": PatternRule("sink", 0.3, "more than 0.3 of its attention goes to the first token"),
    "uniform": PatternRule("entropy", 0.9, "its rows have more than 90% of the entropy of uniform attention"),
}


def match_patterns(scores: Mapping[str, float | None], chance: Mapping[str, float | None]) -> list[str]:
    """Return the pattern names of a head with these scores, in the order of the rules.

    An unknown score gives no name.
    """
    names = []
    for name, (score, threshold, _) in PATTERN_RULES.items():
        value = scores.get(score)
        chance_level = chance.get(score)
        if value is None or not value > threshold:
            continue
        if name == "uniform" or chance_level is None or value > chance_level:
            names.append(name)
    return names


def match_head_patterns(
    tables: Mapping[str, list[list[float | None]]], chance: Mapping[str, float | None]
) -> list[list[list[str]]]:
    """Return the pattern names of every head of a run [layer][head], [] for a layer without heads."""
    first = next(iter(tables.values()), [])
    return [
        [match_patterns({k: t[layer][head] for k, t in tables.items()}, chance) for head in range(len(row))]
        for layer, row in enumerate(first)
    ]
