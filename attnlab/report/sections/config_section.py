"""Config: the keys in which the arms differ, and the complete config of the baseline."""

import json
from typing import Any, Final

from attnlab.report.schema import Report
from attnlab.report.section import Block, Code, Column, Fold, Section, Table, Text, code
from attnlab.report.sections import PageContext

PLACE: Final = 110


def build(report: Report, context: PageContext) -> Section:
    """Build the section of configs."""
    config = report.config
    blocks: list[Block] = [Text("The arms do not differ in any key.")]
    if config.rows:
        columns = [Column("key"), *map(Column, config.arms)]
        rows = [
            [
                code(row.key),
                *(code(_format_json(cell.value)) if cell.present else "absent" for cell in row.cells),
            ]
            for row in config.rows
        ]
        blocks = [Table("config", "Keys in which the arms differ.", columns, rows, by_arm=True)]
    if config.baseline_config:
        baseline = report.experiment.baseline
        name = baseline if baseline in config.arms else config.arms[0]
        text = _format_json(config.baseline_config, indent=2)
        blocks.append(Fold(f"Complete config of {name}", [Code(text, "json")]))
    return Section("config", "Config", blocks, is_long=True)


def _format_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, indent=indent)
