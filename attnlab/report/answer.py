"""The first screen of a report: the answer in one sentence with its price, and its arms, the best first.

A pure function of the rest of a report, so that a report of an older version gets one too.
"""

from collections.abc import Mapping
from typing import Any

from attnlab.report.tables.format import NONE, span, text, with_unit
from attnlab.report.tables.ranking import by_seed, columns, reached

Report = Mapping[str, Any]
CACHE = "kv_bytes_per_token"
PRICED = (CACHE, "parameters", "flops_per_token")  # of the budget, as the sentence names them
COSTS = (CACHE, "carried_bytes", "decode_ms_per_token")  # of the trade-off, columns of the arms
SHARES = {0.25: "quarters", 0.5: "halves", 2.0: "doubles"}
NOTHING = {"mean": None, "low": None, "high": None}
DECIDED = ("SUPPORTED", "REFUTED", "INCONCLUSIVE")


def answer(report: Report) -> dict[str, Any]:
    """The sentence, which columns the arms have, and the arms."""
    effects = list(primary(report).values())
    panels = [panel for panel in report["tradeoff"] if panel["key"] in COSTS]
    arms = [_arm(report, arm, effects, panels) for arm in report["experiment"]["arms"]]
    sign = -1 if report["experiment"]["direction"] == "higher" else 1
    arms.sort(key=lambda row: (row["rank"] is None, sign * (row["rank"] or 0.0)))
    for row in arms:
        row["ranked"] = row.pop("rank") is not None
    return {
        "sentence": _sentence(report, arms),
        "label": effects[0]["label"] if effects else report["experiment"]["metric"],
        "unit": effects[0]["unit"] if effects else "",
        "digits": max((row["digits"] for row in effects), default=3),
        "costs": [{key: panel[key] for key in ("key", "label", "unit")} for panel in panels],
        "arms": arms,
    }


def told(report: Report, whole: bool = True) -> tuple[list[str], list[list[str]]]:
    """The arms as text: a header, and a row for each; where it is to be `whole`, with all that ranks them."""
    known = report["answer"]
    effects = primary(report)
    ends = timed(report)
    more = columns(report) if whole else []
    labels = [(known["label"], known["unit"]), ("difference", "")]
    labels += [(one["label"], one["unit"]) for one in (*more, *known["costs"])]
    rows = []
    for row in known["arms"]:
        own = {**row["reached"], "digits": known["digits"]}
        effect = effects.get(row["arm"])
        word = "baseline" if row["baseline"] else effect["word"] if effect else NONE
        differs = _with_ends(effect, sign=True) if effect else NONE
        also = [
            _with_ends({"digits": one["digits"], **one["cells"].get(row["arm"], NOTHING)}) for one in more
        ]
        costs = [
            f"{text(value)}{_ends_of(ends.get((cost['key'], row['arm'])) if whole else None)}"
            for cost, value in zip(known["costs"], row["costs"], strict=True)
        ]
        rows.append([row["arm"], _with_ends(own), differs, *also, *costs, word])
    return ["arm", *(with_unit(label, unit) for label, unit in labels), "in words"], rows


def primary(report: Report) -> dict[str, Any]:
    """Arm -> its effect in the experiment's metric."""
    return {row["arm"]: row for row in report["effects"] if row["primary"]}


def timed(report: Report) -> dict[tuple[str, str], tuple[float, float]]:
    """A cost's key and an arm -> the interval of that cost, where it was timed."""
    return {
        (panel["key"], point["arm"]): (point["x_low"], point["x_high"])
        for panel in report["tradeoff"]
        for point in panel["points"]
        if point["x_low"] is not None
    }


def _with_ends(of: Mapping[str, Any], sign: bool = False) -> str:
    """1.716 [1.708, 1.723]"""
    ends = "" if of["low"] is None else f" {span(of['low'], of['high'], of['digits'], sign=sign)}"
    return f"{text(of['mean'], of['digits'], sign=sign)}{ends}"


def _ends_of(timed: tuple[float, float] | None) -> str:
    return f" {span(*timed, sign=False)}" if timed else ""


def _arm(report: Report, arm: str, effects: list[Any], panels: list[Any]) -> dict[str, Any]:
    """What an arm changes, what it reached over its complete pairs, and what it costs."""
    base = arm == report["experiment"]["baseline"]
    own = next((row for row in effects if row["arm"] == arm), None)
    values = [*by_seed(effects, arm, report["experiment"]["baseline"]).values()]
    declared = (report["reproduce"].get("declared") or {}).get("arm_overrides") or {}
    leaks = arm in (report["leakage"] or {"arms": []})["arms"]
    difference = (0.0 if values else None) if base else own["mean"] if own else None
    at = [next((point["x"] for point in panel["points"] if point["arm"] == arm), None) for panel in panels]
    return {
        "arm": arm,
        "baseline": base,
        "changes": [str(override) for override in declared.get(arm) or []],
        "reached": reached(values),
        "rank": None if leaks else difference,
        "costs": at,
    }


def _sentence(report: Report, arms: list[dict[str, Any]]) -> str:
    """The answer to the experiment's question: what its first claim about the metric comes to."""
    claim = _subject(report)
    if claim is None:
        return f"No claim was declared{_leader(report, arms)}{_scope(report)}."
    if claim["verdict"] not in DECIDED or not _plain(report, claim):
        said = claim["sentence"].partition(": ")[2]
        opening = "" if claim["verdict"] in DECIDED else f"{claim['verdict'].capitalize()}: "
        return f"{opening}{said.removesuffix('.')}{_scope(report)}."
    price = _price(report, claim["arm"], claim["against"])
    effect = _effect(claim, report["experiment"]["baseline"])
    both = f"{price} and {effect}" if price else effect
    opening = "Undecided: " if claim["verdict"] == "INCONCLUSIVE" else ""
    training = f": {claim['training']['words']}" if claim["training"] else ""
    by_design = report["leakage"]["by_design"] if report["leakage"] else []
    seeing = [arm for arm in (claim["arm"], claim["against"]) if arm in by_design]
    caveat = "".join(f" {arm} sees future tokens (by design)." for arm in seeing)
    return f"{opening}{claim['arm']} {both}{training}{_scope(report, claim['decision']['n'])}.{caveat}"


def _subject(report: Report) -> Any:
    """The claim that answers the question: the first that is measured in the experiment's metric."""
    claims = report["verdict"]["claims"]
    asked = [claim for claim in claims if not claim["decision"]["exact"] and not claim["identity"]]
    metric = report["experiment"]["metric"]
    return next((claim for claim in asked if claim["metric"] == metric), next(iter([*asked, *claims]), None))


def _plain(report: Report, claim: Any) -> bool:
    """Whether it is about a difference in the experiment's metric that has an interval."""
    alike = claim["metric"] == report["experiment"]["metric"] and claim["compare"] == "difference"
    return alike and claim["decision"]["estimate"] is not None and None not in _ends(claim)


def _ends(claim: Any) -> tuple[float | None, float | None]:
    """The interval at one level for all claims; in reports that had none, the one that decided."""
    ends = claim["interval"] or claim["decision"]
    return ends["low"], ends["high"]


def _price(report: Report, arm: str, against: str) -> str:
    """What the arm takes more or less of: halves the KV cache per token, with 0.92 times the parameters."""
    shares = {}
    for row in report["budget"]["rows"]:
        ours = _cell(row, arm)
        theirs = _cell(row, against)
        if row["key"] in PRICED and ours and theirs and abs(ours / theirs - 1) > (row["tolerance"] or 0.0):
            shares[row["key"]] = (ours / theirs, row["label"])
    if not 0.5 <= shares.get("parameters", (1.0,))[0] <= 2:
        return ""  # models of two sizes, which is not the price of one's design
    cache = shares.pop(CACHE, None)
    rest = " and ".join(f"{share:.3g} times the {label}" for share, label in shares.values())
    if cache is None:
        return f"has {rest}" if rest else ""
    share, label = cache
    said = f"{SHARES[share]} the {label}" if share in SHARES else f"has {share:.3g} times the {label}"
    return f"{said}, with {rest}," if rest else said


def _cell(row: Any, arm: str) -> float | None:
    value = next((cell["value"] for cell in row["cells"] if cell["arm"] == arm), None)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _effect(claim: Any, baseline: str) -> str:
    """Costs 0.007 nats of val/loss [-0.007, 0.020]: a gain is told as one."""
    estimate, (low, high), digits = claim["decision"]["estimate"], _ends(claim), claim["digits"]
    what = f"{claim['unit']} of {claim['label']}" if claim["unit"] else claim["label"]
    versus = "" if claim["against"] == baseline else f" against {claim['against']}"
    if claim["direction"] is None:  # neither side is a cost
        return f"has {text(estimate, digits)} more {what} {span(low, high, digits, sign=False)}{versus}"
    verb = "costs" if (estimate < 0) == (claim["direction"] == "higher") else "gains"
    if estimate < 0:
        low, high = -(high or 0.0), -(low or 0.0)
    what = what if claim["unit"] else f"in {what}"
    return f"{verb} {text(abs(estimate), digits)} {what} {span(low, high, digits, sign=False)}{versus}"


def _leader(report: Report, arms: list[dict[str, Any]]) -> str:
    """Which arm came out best, where nothing was claimed."""
    known = [row for row in arms if row["reached"]["mean"] is not None and row["ranked"]]
    left = [row["arm"] for row in arms if row["reached"]["mean"] is not None and not row["ranked"]]
    apart = f"; not comparable: {', '.join(left)}" if left else ""
    if len(known) < 2:
        return apart
    end = "highest" if report["experiment"]["direction"] == "higher" else "lowest"
    metric = report["experiment"]["metric"]
    return f": {known[0]['arm']} came out with the {end} {metric} of {len(known)} arms{apart}"


def _scope(report: Report, seeds: int | None = None) -> str:
    """What the answer is about: at size S (105,216 parameters), on pydocs, 16 seeds."""
    row = next((row for row in report["budget"]["rows"] if row["key"] == "parameters"), None)
    count = _cell(row, report["experiment"]["baseline"]) if row else None
    known = f" ({text(count)} parameters)" if count else ""
    size = report["experiment"].get("size")
    data = report["reproduce"]["data"]
    place = [f"at size {size}{known}"] if size else [f"at {text(count)} parameters"] if count else []
    place += [f"on {', '.join(dict.fromkeys(str(one['name']) for one in data))}"] if data else []
    place += [f"{seeds} seeds"] if seeds else []
    return f"; {', '.join(place)}" if place else ""
