"""Claim groups in words and tables: the steps of a staircase, an interaction, parts left out in turn."""

from attnlab.report.number_format import format_difference
from attnlab.report.schema import ClaimGroup, GroupEffect
from attnlab.report.tables.wording import format_estimate
from attnlab.store.experiment_schema import format_sides

GROUP_HEADER = ["effect", "difference", "estimate"]


def describe_group(group: ClaimGroup) -> str:
    """Describe the effects of a group in one sentence, for readers without pictures."""
    effects = "; ".join(f"{effect.name}: {format_group_effect(group, effect)}" for effect in group.effects)
    return f"{name_group(group)}. {effects}"


def name_group(group: ClaimGroup) -> str:
    """Return the heading of a group, with its metric."""
    what = {
        "chain": f"Steps from {group.arms[0]} to {group.arms[-1]}",
        "interaction": "Alone and together: " + " and ".join(group.arms[1:3]),
        "leave_one_out": f"{group.arms[0]} with one part left out",
    }[group.kind]
    return f"{what}: {group.label}"


def explain_group(group: ClaimGroup) -> str:
    """Explain how the effects of a group are to be read, with its seeds."""
    n = len(group.seeds)
    over = f"over the {n} seed{'' if n == 1 else 's'} that all of these arms have finished"
    explanations = {
        "chain": "Each bar starts where the step before ends, and the last is the difference of both ends, "
        "the sum of the steps",
        "interaction": "Each change alone, and beside the other; the interaction is the difference between "
        "the two. Parallel lines mean that the changes add up",
        "leave_one_out": "The effect of leaving out one part, the most harmful omission first",
    }
    return (
        f"{explanations[group.kind]}. Means {over}, with {100 * group.level:.0f}% intervals; the claims have "
        "the verdicts, which control the error over all of them."
    )


def build_group_table(group: ClaimGroup) -> list[list[str]]:
    """Return a row per effect: its name, its weighted arms, and its estimate with the interval."""
    return [
        [
            effect.name,
            format_difference(*format_sides(effect.weights)),
            format_group_effect(group, effect),
        ]
        for effect in rank_effects(group)
    ]


def format_group_effect(group: ClaimGroup, effect: GroupEffect) -> str:
    """Format an effect with its interval, as in `-0.012 nats, 95% CI [-0.020, -0.004]`."""
    return format_estimate(effect.mean, effect.low, effect.high, group.level, group.digits, unit=group.unit)


def rank_effects(group: ClaimGroup) -> list[GroupEffect]:
    """The effects of a group, those of parts left out by size, the most harmful omission first."""
    if group.kind != "leave_one_out":
        return group.effects
    sign = -1 if group.direction == "higher" else 1
    return sorted(group.effects, key=lambda effect: -sign * (effect.mean or 0.0))
