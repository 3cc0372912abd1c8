"""The function that Hydra runs, so that any launcher will do.

With an `id`: the run that the sweep has composed, checked and stored, in a process of its own. Without one
(`hydra.mode=RUN`): one run in this process, as a W&B agent wants it.
"""

import sys
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from attnlab.store import fingerprint, runs
from attnlab.store.schema import Estimate, RunRecord, Use
from attnlab.sweep.execute import worker
from attnlab.sweep.execute.pool import Pool
from attnlab.sweep.execute.progress import Progress, ending
from attnlab.sweep.execute.sending import Sending
from attnlab.sweep.plan.arms import identified
from attnlab.sweep.plan.trainer import trainer, trainer_of


def run(config: DictConfig) -> RunRecord | None:
    """Returns the record. Failures are recorded, not raised: launchers differ in what they make of those."""
    if config.get("id"):
        folder = Path(config.paths.runs) / str(config.id)
        shipped: Any = OmegaConf.to_container(config.sweep, resolve=True)
        settings = {**shipped, "slots": 1}
        Pool(settings, Progress({folder: folder.name}), None).run([folder])
        return runs.record(folder)
    folder = _prepare(config)
    logger: Any = OmegaConf.to_container(config.get("logger") or OmegaConf.create(), resolve=True)
    sending = Sending(folder.parent, logger, None)
    sending.watch([folder.name])
    status = worker.train(folder)
    sending.end()
    sending.tell()
    print(f"{ending(runs.record(folder))}  {folder}", flush=True)
    if status:
        sys.exit(status)
    return runs.record(folder)


def _prepare(config: DictConfig) -> Path:
    resolved: Any = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    name = trainer_of(resolved)
    estimate = Estimate.model_validate({"device_kind": "cpu", **trainer(name).check(resolved)})
    run = identified(resolved, estimate, fingerprint.source(resolved, name), Use(arm="run"))
    root = Path(config.paths.runs)
    runs.refuse_unwritable(root)
    if runs.record(root / run.id) is None:
        runs.write_spec(root, run)
    return root / run.id
