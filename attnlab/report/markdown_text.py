"""Markdown in which all text is escaped that a renderer has not marked as Markdown.

Text of reports comes from files: names of arms, questions, sources, messages, versions, commands.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Self

from markupsafe import Markup

from attnlab.errors import escape_unprintable

_ENTITY = r"&(?=#?\w+;)"
_BLOCK_START = re.compile(r"^\s*(\d*)(?=[-+](?:\s|$)|---|===|~~~|(?<=\d)[.)](?:\s|$))")  # list, rule, code


class Markdown(Markup):
    """Markdown; `format`, `join` and `+` escape all text that is no Markdown itself, as `Markup` does."""

    __slots__ = ()
    markup: ClassVar = re.compile(rf"[\\`*_\[\]<>|#]|{_ENTITY}")

    @classmethod
    def escape(cls, s: Any, /) -> Self:
        """Return text as one line that is no markup and cannot leave its table cell."""
        if isinstance(s, Markdown):
            return cls(s)
        text = escape_unprintable(" ".join(str(s).splitlines()), allowed="\t")
        return cls(cls.markup.sub(r"\\\g<0>", text))


class ReadableMarkdown(Markdown):
    """Markdown that stays readable as text: the brackets of intervals and the underscores of names stay.

    Escaped are HTML, entities, code, links and the ends of cells.
    """

    __slots__ = ()
    markup: ClassVar = re.compile(rf"[\\`|]|<(?=[A-Za-z/!?])|{_ENTITY}|(?<=\])(?=\()")


def join_lines(lines: Iterable[str], kind: type[Markdown] = Markdown) -> Markdown:
    """Return lines as a page; text at the start of a line begins no list, rule or block of code."""
    return kind("\n").join(
        line if isinstance(line, Markdown) else kind(_BLOCK_START.sub(r"\1\\", kind.escape(line)))
        for line in lines
    )


def format_table(
    header: Sequence[str], rows: Iterable[Sequence[str]], kind: type[Markdown] = Markdown
) -> list[str]:
    """Return a Markdown table as lines, with an empty line after it."""
    cells = (header, [kind("---")] * len(header), *rows)
    return [*(kind("| {} |").format(kind(" | ").join(row)) for row in cells), kind()]


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
