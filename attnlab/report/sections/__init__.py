"""The sections of a report, a file each: `PLACE` orders them on the page, `build` returns one or None."""

from dataclasses import dataclass
from importlib import import_module
from pkgutil import iter_modules

from attnlab.report.schema import Report
from attnlab.report.section import Section
from attnlab.report.tables.map_archive import MapArchive


@dataclass(frozen=True)
class PageContext:
    """What a page has beside report.json.

    Attributes:
        bibliography: address of the bibliography; empty links no entry of it.
        maps: attention maps of the runs.
    """

    bibliography: str = ""
    maps: MapArchive | None = None


def build_sections(report: Report, context: PageContext | None = None) -> list[Section]:
    """Build all sections of a report, in the order of the page."""
    modules = [import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__)]
    modules.sort(key=lambda module: module.PLACE)
    sections = (module.build(report, context or PageContext()) for module in modules)
    return [section for section in sections if section is not None]
