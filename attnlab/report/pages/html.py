"""Draw a page of sections as one HTML file without requests; scripts only add comfort.

Text from a corpus or a log is escaped. The data for scripts are JSON in an inert element, with every
character escaped that could end it.
"""

import json
from collections.abc import Iterable, Set
from functools import singledispatchmethod
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from attnlab.report.charts.chart_renderer import RenderedCharts, render_charts
from attnlab.report.number_format import keep_intervals_whole
from attnlab.report.pages.glossary import Glossary
from attnlab.report.section import (
    SIGNS,
    Block,
    Cell,
    Chart,
    ChartRow,
    Code,
    Fold,
    Heading,
    Interactive,
    Items,
    Key,
    Page,
    Row,
    Section,
    Table,
    Terms,
    Text,
    iterate_blocks,
    list_charts,
)

TEMPLATE_FOLDER = Path(__file__).parents[1] / "templates"
MANY_COLUMNS = 7  # a table with as many arms is stacked on paper
LONG_LIST = 8  # rows of arms, above which a reader may search them
JSON_ESCAPES: dict[str, str | int | None] = {
    "<": "\\u003c",
    ">": "\\u003e",
    "&": "\\u0026",
    "\u2028": "\\u2028",
    "\u2029": "\\u2029",
}
SHAPES = {
    "circle": '<circle r="5"/>',
    "square": '<path d="M-4.5-4.5h9v9h-9z"/>',
    "triangle-up": '<path d="M0-5 5 4.5H-5z"/>',
    "diamond": '<path d="M0-5.5 5.5 0 0 5.5-5.5 0z"/>',
    "cross": '<path d="M-2-5.5h4v3.5h3.5v4H2v3.5h-4V2h-3.5v-4H-2z"/>',
    "triangle-down": '<path d="M0 5 5-4.5H-5z"/>',
    "triangle-right": '<path d="M5 0-4.5 5V-5z"/>',
    "triangle-left": '<path d="M-5 0 4.5 5V-5z"/>',
}


def escape_json(value: Any) -> Markup:
    """JSON that is safe inside a script element of any type."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return Markup(text.translate(str.maketrans(JSON_ESCAPES)))


def load_asset(name: str) -> Markup:
    """The text of a style sheet or script in the template folder."""
    return Markup((TEMPLATE_FOLDER / name).read_text("utf-8"))


def build_environment() -> Environment:
    """The Jinja environment of the templates."""
    return Environment(
        loader=PackageLoader("attnlab.report"), autoescape=True, undefined=StrictUndefined, lstrip_blocks=True
    )


def render_page(page: Page, rendered: RenderedCharts | None = None) -> str:
    """Return the page; without `rendered` its charts are rendered here."""
    rendered = rendered or render_charts(list_charts(page.sections))
    blocks = [block for section in page.sections for block in iterate_blocks(section.blocks)]
    data = next((block.data for block in blocks if isinstance(block, Interactive) and block.data), None)
    writer = HtmlWriter(page, rendered)
    return (
        build_environment()
        .get_template("page.html")
        .render(
            page=page,
            errors=rendered.error_messages,
            meta=[writer.format_text(text) for text in page.meta],
            sections=[(section, writer.format_section(section)) for section in page.sections],
            anchors=[(block.id, block.text) for block in blocks if isinstance(block, Heading) and block.id],
            data=escape_json(data) if data else None,
            css=Markup("").join(map(load_asset, ("page.css", "explorer.css"))),
            js=load_asset("page.js") + load_asset("save_charts.js"),
            explorer=load_asset("explorer_draw.js") + load_asset("explorer.js"),
        )
    )


class HtmlWriter:
    """Writes the blocks of one page, whose terms are explained where they occur first."""

    def __init__(self, page: Page, rendered: RenderedCharts) -> None:
        self._page = page
        self._rendered = rendered
        self._explain = Glossary().explain_terms

    def format_section(self, section: Section) -> Markup:
        """The section with its heading."""
        return Markup('<section id="{}">\n<h2>{}</h2>\n{}\n</section>').format(
            section.id, self._explain(section.heading or section.title), self._join(section.blocks)
        )

    def _join(self, blocks: Iterable[Block]) -> Markup:
        return Markup("\n").join(map(self.format_block, blocks))

    @singledispatchmethod
    def format_block(self, block: Block) -> Markup:
        """A block of a section."""
        raise TypeError(f"{type(block).__name__} is no block of a section")

    @format_block.register
    def _(self, block: Text) -> Markup:
        kind = block.style
        text = self.format_text(block)
        if kind == "plain":
            return Markup("<p>{}</p>").format(text)
        if kind == "strong":
            return Markup("<p><strong>{}</strong></p>").format(text)
        tag = "div" if kind == "banner" else "p"
        return Markup('<{0} class="{1}">{2}</{0}>').format(Markup(tag), kind, text)

    def format_text(self, text: Text) -> Markup:
        """The parts of a text, with its links."""
        return Markup("").join(
            self._explain(keep_intervals_whole(part))
            if isinstance(part, str)
            else Markup('<a href="{}">{}</a>').format(part.href, part.text)
            for part in text.parts
        )

    @format_block.register
    def _(self, block: Items) -> Markup:
        items = Markup("").join(Markup("<li>{}</li>").format(self._explain(item)) for item in block.items)
        if not block.title:
            return Markup("<ul>{}</ul>").format(items)
        title, _, rest = block.title.partition(" ")
        return Markup('<div class="banner"><strong>{}</strong> {}<ul>{}</ul></div>').format(
            title, rest, items
        )

    @format_block.register
    def _(self, block: Terms) -> Markup:
        pairs = (
            Markup("<dt>{}</dt><dd>{}</dd>").format(
                term, self._format_content(text) if isinstance(text, Cell) else text
            )
            for term, text in block.pairs
        )
        return Markup("<dl>{}</dl>").format(Markup("\n").join(pairs))

    @format_block.register
    def _(self, block: Code) -> Markup:
        if not block.id:
            return Markup('<pre tabindex="0">{}</pre>').format(block.text)
        return Markup(
            '<pre id="{0}" tabindex="0">{1}</pre>\n'
            '<button class="copy" type="button" data-copies="{0}" hidden>Copy</button>'
        ).format(block.id, block.text)

    @format_block.register
    def _(self, block: Heading) -> Markup:
        anchor = Markup(' id="{}"').format(block.id) if block.id else ""
        return Markup("<h3{}>{}</h3>").format(anchor, block.text)

    @format_block.register
    def _(self, block: Fold) -> Markup:
        return Markup("<details><summary>{}</summary>{}</details>").format(
            block.title, self._join(block.blocks)
        )

    @format_block.register
    def _(self, block: Interactive) -> Markup:
        return Markup(block.markup)

    @format_block.register
    def _(self, block: Key) -> Markup:
        arms = block.arms or [*self._page.styles]
        items = (
            Markup("<li>{}{}{}</li>").format(
                self._draw_symbol(arm), arm, " (baseline)" if arm == self._page.baseline else ""
            )
            for arm in arms
        )
        return Markup('<ul class="key" aria-label="Arms">{}</ul>').format(Markup("").join(items))

    def _draw_symbol(self, arm: str) -> Markup:
        if arm not in self._page.styles:
            return Markup()
        color, shape = self._page.styles[arm]
        return Markup(
            '<svg width="12" height="12" viewBox="-6 -6 12 12" aria-hidden="true" fill="{}">{}</svg>'
        ).format(color, Markup(SHAPES.get(shape, SHAPES["triangle-left"])))

    @format_block.register
    def _(self, block: Chart) -> Markup:
        pictures = [self._find_picture(name, block.label) for name in block.list_names()]
        caption = Markup("<figcaption>{}</figcaption>").format(block.caption) if block.caption else ""
        if len(pictures) == 1:
            return Markup("<figure>{}{}</figure>").format(pictures[0], caption)
        return Markup('<figure><div class="wide">{}</div><div class="narrow">{}</div>{}</figure>').format(
            *pictures, caption
        )

    def _find_picture(self, name: str, label: str) -> Markup:
        """The chart, or its description in words where it could not be rendered."""
        if name in self._rendered.svgs:
            return Markup(self._rendered.svgs[name])
        return Markup('<p class="note">Figure not rendered: {}</p>').format(label)

    @format_block.register
    def _(self, block: ChartRow) -> Markup:
        row = Markup('<div class="row charts" tabindex="0" role="group" aria-label="{}">{}</div>').format(
            block.label, self._join(block.charts)
        )
        caption = Markup('\n<p class="note">{}</p>').format(self._explain(block.caption))
        return row + caption if block.caption else row

    @format_block.register
    def _(self, table: Table) -> Markup:
        rows = table.full_rows
        numeric = {i for row in rows for i, cell in enumerate(row.typed_cells) if cell.kind == "number" and i}
        heads = (
            Markup('<th scope="col"{}>{}</th>').format(
                Markup(' class="num"') if i in numeric else "", self._explain(table.columns[i].heading)
            )
            for i in table.shown_columns
        )
        kinds = [table.name.partition(".")[0]]
        kinds += ["sortable"] if table.is_sortable and not any(row.details for row in rows) else []
        kinds += ["by-arm" if len(table.shown_columns) < MANY_COLUMNS else "stacked"] if table.by_arm else []
        search = ""
        if table.name == "arms" and len(rows) > LONG_LIST:
            search = Markup(
                '<p class="find" hidden><label>Find an arm <input type="search" id="find-arm" '
                'autocomplete="off"></label> <span class="note">Select an arm to highlight it in every '
                "chart.</span></p>"
            )
        return Markup(
            '{}<div class="scroll" tabindex="0"><table class="{}"><caption>{}</caption>\n'
            "<thead><tr>{}</tr></thead>\n<tbody>{}</tbody></table></div>"
        ).format(
            search,
            " ".join(kinds),
            self._explain(table.caption),
            Markup("").join(heads),
            Markup("\n").join(self._format_row(table, row, numeric) for row in rows),
        )

    def _format_row(self, table: Table, row: Row, numeric: Set[int]) -> Markup:
        cells = row.typed_cells
        first, *rest = ((i, cells[i]) for i in table.shown_columns)
        marked = [
            Markup('<th scope="row"{}>{}</th>').format(
                Markup(' class="prose"') if first[1].kind == "prose" else "", self._format_content(first[1])
            )
        ]
        for i, cell in rest:
            label = Markup(' data-label="{}"').format(table.columns[i].title) if table.by_arm else ""
            plain = "num" if i in numeric else ""
            kind = {"number": "num", "text": plain, "verdict": "word", "prose": "prose"}.get(cell.kind, "")
            marked.append(
                Markup("<td{}{}>{}</td>").format(
                    Markup(' class="{}"').format(kind) if kind else "", label, self._format_content(cell)
                )
            )
        arm = Markup(' data-arm="{}"').format(first[1].text) if first[1].kind == "arm" else ""
        line = Markup("<tr{}>{}</tr>").format(arm, Markup("").join(marked))
        if not row.details:
            return line
        return line + Markup(
            '\n<tr class="details"><td colspan="{}"><details><summary>Details</summary>{}</details></td></tr>'
        ).format(len(marked), self._join(row.details))

    def _format_content(self, cell: Cell) -> Markup:
        """The content of a cell: a number with its full value, a verdict with its sign and color."""
        text = escape(cell.text if cell.kind == "code" else keep_intervals_whole(cell.text))
        if cell.kind == "number" and isinstance(cell.value, int | float):
            text = Markup('<data value="{}">{}</data>').format(repr(cell.value), text)
        elif cell.kind == "verdict":
            word = str(cell.value)
            sign = Markup('<span aria-hidden="true">{}</span>').format(SIGNS[word]) if word in SIGNS else ""
            text = Markup('<span class="badge {}">{}{}</span>').format(
                word.replace(" ", "-"), sign, self._explain(cell.text)
            )
        elif cell.kind == "code":
            text = Markup("<code>{}</code>").format(text)
        elif cell.kind == "arm":
            text = self._draw_symbol(cell.text) + text
        elif cell.parts:
            text = self.format_text(Text(*cell.parts))
        if cell.href:
            text = Markup('<a href="{}">{}</a>').format(cell.href, text)
        if cell.note:
            text += Markup(' <span class="ratio">{}</span>').format(keep_intervals_whole(cell.note))
        if cell.mark:
            sign, meaning = cell.mark
            text += Markup(
                ' <span class="mark is-{}" role="img" aria-label="{}" title="{}">{}</span>'
            ).format(meaning.replace(", ", "-").replace(" ", "-"), meaning, meaning, sign)
        return text
