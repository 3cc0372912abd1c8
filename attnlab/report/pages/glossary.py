"""A page's terms, each explained at its first use: on hover, on focus and on a tap, without a script."""

import re

from markupsafe import Markup, escape

DEFINITIONS = {
    "SUPPORTED": "Every value that the measurements leave plausible fits the claim.",
    "REFUTED": "No value that the measurements leave plausible fits the claim.",
    "INCONCLUSIVE": "The measurements leave both open. That is no evidence that the arms are equal.",
    "NOT COMPARABLE": "The arms differ in what has to be equal (budget, data, units), or see the future.",
    "UNTRAINED": "The models have learned next to nothing, so they show nothing of the designs.",
    "NO RESULT": "Nothing was measured that bears on the claim.",
    "EQUIVALENT": "Surely closer to the baseline than the margin, by two one-sided tests.",
    "nats": "Units of information: a loss is the mean of -ln p of the right token; 0.69 nats are a bit.",
    "margin": "The difference that was declared to matter before the comparison began.",
    "arm": "One of the designs that are compared, with all its seeds.",
    "baseline": "The arm that the others are compared with.",
    "seed": "One start: initial weights and the order of the data, which all arms share where they can.",
    "interval": "What the measured seeds leave plausible. One of 95 % misses the truth one time in twenty.",
    "paired": "Arms are compared seed by seed, which takes out what they have in common.",
    "training compute": "The same difference in loss as more or less training compute of the baseline.",
    "KV cache": "Keys and values of past tokens that decoding keeps, not to compute them again.",
    "controlled": "Declared to be equal in all arms; where it is not, claims are NOT COMPARABLE.",
    "interim analysis": "A point, fixed beforehand, at which the seeds so far may decide.",
    "Holm": "A method that shares one error rate of 5 % over all claims of the page.",
    "FLOPs": "Multiplications and additions, counted from the shapes.",
    "chance": "What a head that attends evenly would score.",
}  # fmt: skip
_TERM_PATTERN = re.compile(
    r"(?<![\w-])(" + "|".join(sorted(map(re.escape, DEFINITIONS), key=len, reverse=True)) + r")(?=s?\b)"
)


class Glossary:
    """Marks the first use of each term on one page."""

    def __init__(self) -> None:
        self._explained_terms: set[str] = set()

    def explain_terms(self, content: object) -> Markup:
        """The text, escaped, with a definition at the first use of each term."""
        text = str(escape(content)).replace(" %", "\N{NO-BREAK SPACE}%")
        return Markup(_TERM_PATTERN.sub(self._mark_first_use, text))

    def _mark_first_use(self, match: re.Match[str]) -> str:
        term = match[1]
        if term in self._explained_terms:
            return term
        self._explained_terms.add(term)
        definition = escape(DEFINITIONS[term])
        attributes = f'aria-description="{definition}" data-says="{definition}"'
        return f'<span class="term" tabindex="0" {attributes}>{term}</span>'
