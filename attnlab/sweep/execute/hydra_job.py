"""The function that Hydra runs, so that any launcher will do.

With an `id`: the run that the sweep has composed, checked and stored, in a process of its own. Without one
(`hydra.mode=RUN`): one run in this process, as a W&B agent wants it.
"""

import importlib
import sys
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from attnlab.store import fingerprint, runs
from attnlab.sweep.execute import worker
from attnlab.sweep.execute.pool import Pool
from attnlab.sweep.execute.progress import Progress, ending
from attnlab.sweep.plan import checks


def run(config: DictConfig) -> dict[str, Any] | None:
    """Returns the record. Failures are recorded, not raised: launchers differ in what they make of those."""
    if config.get("id"):
        folder = Path(config.paths.runs) / str(config.id)
        switches = {**OmegaConf.to_container(config.sweep, resolve=True), "slots": 1}
        Pool(switches, Progress({folder: folder.name}), None).run([folder])
        return runs.record(folder)
    folder = _prepare(config)
    status = worker.train(folder)
    print(f"{ending(runs.record(folder))}  {folder}", flush=True)
    if status:
        sys.exit(status)
    return runs.record(folder)


def _prepare(config: DictConfig) -> Path:
    resolved: Any = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    trainer = checks.trainer(resolved)
    figures = {"device_kind": "cpu", **importlib.import_module(trainer).check(resolved)}
    resolved["id"], hashed = fingerprint.identify(resolved, figures, fingerprint.source(resolved, trainer))
    root = Path(config.paths.runs)
    runs.refuse_unwritable(root)
    folder = root / resolved["id"]
    if runs.record(folder) is None:
        use = {"experiment": None, "arm": "run", "overrides": []}
        runs.write_spec(folder, semantic=hashed, config=resolved, figures=figures, use=use)
    return folder
