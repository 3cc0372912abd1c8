"""A page's terms, each explained at its first use: on hover, on focus and on a tap, without a script."""

import re

from markupsafe import Markup, escape

from attnlab.report.schema import MEANINGS

DEFINITIONS: dict[str, str] = {
    **MEANINGS,
    "nats": "Units of information: a loss is the mean of -ln p of the correct token; 1 bit is 0.69 nats.",
    "margin": "The smallest difference that matters, preregistered before the comparison.",
    "arm": "One of the compared designs, with all its seeds.",
    "baseline": "The arm that the others are compared with.",
    "seed": "Random initialization and data order of a run, shared by all arms where possible.",
    "interval": "Range of plausible values. A 95% interval misses the true value in 5% of experiments.",
    "paired": "Arms are compared seed by seed, which removes the variation that they share.",
    "training compute": "The difference in loss, as a relative change in training compute of the baseline.",
    "KV cache": "Keys and values of past tokens, stored during decoding so that they are not recomputed.",
    "controlled": "Required to be equal in all arms (budget-matched); otherwise claims are NOT COMPARABLE.",
    "interim analysis": "A preregistered number of seeds at which a claim may be decided early.",
    "Holm": "A method that divides one error rate of 5% among all claims of the page.",
    "FLOPs": "Floating-point multiplications and additions, counted from the tensor shapes.",
    "chance": "The score of a head with uniform attention.",
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
