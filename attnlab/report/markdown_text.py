"""Markdown in which all text is escaped that a renderer has not marked as Markdown.

Text of reports comes from files: names of arms, questions, sources, messages, versions, commands.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Any, Self

from markupsafe import Markup

from attnlab.errors import escape_unprintable

_MARKUP = re.compile(r"[\\`*_\[\]<>|#]|&(?=#?\w+;)")
_BLOCK_START = re.compile(r"^\s*(\d*)(?=[-+](?:\s|$)|---|===|~~~|(?<=\d)[.)](?:\s|$))")  # list, rule, code


class Markdown(Markup):
    """Markdown; `format`, `join` and `+` escape all text that is no Markdown itself, as `Markup` does."""

    __slots__ = ()

    @classmethod
    def escape(cls, s: Any, /) -> Self:
        """Return text as one line that is no markup and cannot leave its table cell."""
        if isinstance(s, Markdown):
            return cls(s)
        text = escape_unprintable(" ".join(str(s).splitlines()), allowed="\t")
        return cls(_MARKUP.sub(r"\\\g<0>", text))


def join_lines(lines: Iterable[str]) -> Markdown:
    """Return lines as a page; text at the start of a line begins no list, rule or block of code."""
    return Markdown("\n").join(
        line if isinstance(line, Markdown) else Markdown(_BLOCK_START.sub(r"\1\\", Markdown.escape(line)))
        for line in lines
    )


def format_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return a Markdown table as lines, with an empty line after it."""
    cells = (header, [Markdown("---")] * len(header), *rows)
    return [*(Markdown("| {} |").format(Markdown(" | ").join(row)) for row in cells), Markdown()]


def format_code(text: str) -> Markdown:
    """Return code for the middle of a line or a cell."""
    text = escape_unprintable(" ".join(text.splitlines())).replace("|", "\\|")
    ticks = _make_fence(text, 1)
    return Markdown(f"{ticks}{text}{ticks}" if ticks == "`" else f"{ticks} {text} {ticks}")


def format_code_block(text: str, language: str = "") -> list[Markdown]:
    """Return a block of code as lines."""
    ticks = _make_fence(text, 3)
    return [Markdown(line) for line in (ticks + language, escape_unprintable(text, allowed="\n\t"), ticks)]


def _make_fence(text: str, n_ticks: int) -> str:
    """Return the shortest fence, of at least `n_ticks`, that does not occur in the code."""
    return "`" * max([n_ticks, *(len(ticks) + 1 for ticks in re.findall("`+", text))])
