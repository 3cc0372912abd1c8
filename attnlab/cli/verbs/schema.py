"""`python -m attnlab schema`: what files must look like, for editors and other programs.

An experiment file may set any key of the config beside its own, so its schema takes unknown keys at the top;
in a claim and in `tune` there are none.
"""

import argparse
import json
from typing import Any

from attnlab.cli.flags import SCHEMAS
from attnlab.errors import Refused, nearest


def main(options: argparse.Namespace) -> int:
    """Prints one schema, or the names of all."""
    if options.name is None:
        print("\n".join(SCHEMAS))
        return 0
    if options.name not in SCHEMAS:
        raise Refused(f"no schema {options.name}{nearest(options.name, SCHEMAS)}")
    print(text(options.name), end="")
    return 0


def text(name: str) -> str:
    """A schema as a file has it."""
    return json.dumps(schema(name), indent=2, ensure_ascii=False) + "\n"


def schema(name: str) -> dict[str, Any]:
    """JSON schema, draft 2020-12, of an experiment file, a run's spec.json or run.json, or a report.json."""
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    if name == "report":
        from attnlab.report.schema import Report

        return head | Report.model_json_schema(by_alias=True, mode="serialization")
    from attnlab.store.declarations import Experiment
    from attnlab.store.schema import Record, RunRecord, RunSpec

    records: dict[str, type[Record]] = {"experiment": Experiment, "spec": RunSpec, "run": RunRecord}
    own = {"additionalProperties": True} if name == "experiment" else {}
    return head | records[name].model_json_schema(by_alias=True) | own
