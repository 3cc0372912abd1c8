"""`python -m attnlab schema`: JSON schemas of files, for editors and other programs.

An experiment file may also set any key of the config, so its schema allows unknown keys at the top level.
Claims and `tune` allow none.
"""

import argparse
import json
from typing import Any

from attnlab.cli.flags import SCHEMA_NAMES
from attnlab.errors import InvalidConfig, format_suggestions


def main(options: argparse.Namespace) -> int:
    """Print one schema, or the names of all."""
    if options.name is None:
        print("\n".join(SCHEMA_NAMES))
        return 0
    if options.name not in SCHEMA_NAMES:
        raise InvalidConfig(f"unknown schema {options.name}{format_suggestions(options.name, SCHEMA_NAMES)}")
    print(format_schema(options.name), end="")
    return 0


def format_schema(name: str) -> str:
    """Format a schema as the text of a file."""
    return json.dumps(build_schema(name), indent=2, ensure_ascii=False) + "\n"


def build_schema(name: str) -> dict[str, Any]:
    """Build the JSON schema (draft 2020-12) of an experiment file, spec.json, run.json or report.json."""
    header = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    if name == "report":
        from attnlab.report.schema import Report

        return header | Report.model_json_schema(by_alias=True, mode="serialization")
    from attnlab.store.experiment_schema import Experiment
    from attnlab.store.run_schema import FrozenModel, RunConfig, RunResult

    models: dict[str, type[FrozenModel]] = {"experiment": Experiment, "spec": RunConfig, "run": RunResult}
    extra_keys = {"additionalProperties": True} if name == "experiment" else {}
    return header | models[name].model_json_schema(by_alias=True) | extra_keys
