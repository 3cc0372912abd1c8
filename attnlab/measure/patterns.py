"""Names for what a head does, by fixed rules over its scores: a head has every name whose rule it satisfies.

Surprising: passing the threshold is not enough where uniform attention passes it too, as a short text makes
everything local; a name is for more than chance.
"""

from collections.abc import Mapping
from typing import NamedTuple


class Rule(NamedTuple):
    score: str
    threshold: float
    says: str


RULES = {
    "induction": Rule(
        "induction", 0.3, "more than 0.3 of its attention goes to what followed earlier copies"
    ),
    "copying": Rule("copying", 0.0, "more than half of what it raises in the logits is the attended token"),
    "positional": Rule("positional", 0.9, "more than 90 % of its rows have their maximum at one offset"),
    "local": Rule("local", 0.7, "more than 0.7 of its attention stays in the last 8 tokens"),
    "sink": Rule("sink", 0.3, "more than 0.3 of its attention goes to the first token"),
    "uniform": Rule("entropy", 0.9, "its rows have more than 90 % of the entropy of uniform ones"),
}


def patterns(scores: Mapping[str, float | None], chance: Mapping[str, float | None]) -> list[str]:
    """The names of a head with these scores, in the order of the rules; an unknown score gives no name."""
    names = []
    for name, (score, threshold, _) in RULES.items():
        value = scores.get(score)
        level = chance.get(score)
        if value is None or not value > threshold:
            continue
        if name == "uniform" or level is None or value > level:
            names.append(name)
    return names


def names_of(
    tables: Mapping[str, list[list[float | None]]], chance: Mapping[str, float | None]
) -> list[list[list[str]]]:
    """The names of every head of a run, [layer][head], from its tables of scores; [] where it has none."""
    first = next(iter(tables.values()), [])
    return [
        [patterns({k: t[layer][head] for k, t in tables.items()}, chance) for head in range(len(row))]
        for layer, row in enumerate(first)
    ]
