"""Reports whose numbers the current code would change, as the table in OUTDATED.md beside them lists them."""

import re
from pathlib import Path

OUTDATED_PAGE = "OUTDATED.md"
_ROW = re.compile(r"^\| \[(?P<name>[^]]+)\]\([^)]*\) \| [^|]* \| (?P<changes>[^|]*) \|$", re.MULTILINE)


def load_outdated(folder: Path) -> dict[str, str]:
    """Load the changes of the code that alter each outdated report, by its name, from a folder of reports.

    A row of the table is `| [name](name/report.md) | commit | changes |`; without the page none is outdated.
    """
    page = folder / OUTDATED_PAGE
    text = page.read_text(encoding="utf-8") if page.is_file() else ""
    return {row["name"]: row["changes"].strip() for row in _ROW.finditer(text)}
