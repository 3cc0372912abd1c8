"""The function that Hydra runs, so that any launcher will do.

With an `id`: the run that the sweep has composed, checked and stored, in a process of its own. Without one
(`hydra.mode=RUN`): one run in this process, as a W&B agent wants it.
"""

import sys
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from attnlab.errors import Refused, printable
from attnlab.store import fingerprint, runs, values
from attnlab.store.guards import inputs, trust, users
from attnlab.store.schema import Estimate, RunRecord, RunSpec, Use
from attnlab.sweep.execute import stored_runs, worker
from attnlab.sweep.execute.pool import Pool
from attnlab.sweep.execute.progress import Progress, ending
from attnlab.sweep.plan.arms import identified
from attnlab.sweep.plan.composer import axes, resolve
from attnlab.sweep.plan.trainer import trainer, trainer_of
from attnlab.training.loggers import notes


def run(config: DictConfig) -> RunRecord | None:
    """Returns the record. Failures are recorded, not raised: launchers differ in what they make of those."""
    if config.get("id"):
        if not inputs.is_name(str(config.id)):
            raise Refused(f"id={config.id}: a run's id is a folder of the store, and no path")
        folder = Path(config.paths.runs) / str(config.id)
        trust.refuse_unknown(runs.spec(folder).config, folder / "spec.json", trust.names(resolve(config)))
        shipped: Any = OmegaConf.to_container(config.sweep, resolve=True)
        settings = {**shipped, "slots": 1}
        Pool(settings, Progress({folder: folder.name}), None).run([folder])
        return runs.record(folder)
    folder, remembered = _prepare(config)
    logger: Any = OmegaConf.to_container(config.get("logger") or OmegaConf.create(), resolve=True)
    status = worker.train(folder)
    users.ended(remembered)
    stored_runs.log([folder], logger, {}, None)
    print(printable(f"{ending(runs.record(folder))}  {folder}"), flush=True)
    if line := notes.closing_line(folder.parent, [folder.name]):
        print(printable(line), flush=True)
    if status:
        sys.exit(status)
    return runs.record(folder)


def _stored(folder: Path, run: RunSpec) -> bool:
    """Whether the spec that lies there is this run's: what is trained or measured again is what it says."""
    try:
        return runs.spec(folder).config == run.config
    except Refused:
        return False


def _prepare(config: DictConfig) -> tuple[Path, Path]:
    """The run's folder, and the store's file that says who uses it."""
    resolved: Any = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    values.refuse(resolved, values.SWEEP)
    inputs.check(resolved)
    name = trainer_of(resolved)
    estimate = Estimate.model_validate({"device_kind": "cpu", **trainer(name).check(resolved)})
    use = Use(arm="run", axes=axes(HydraConfig.get().runtime.choices))
    run = identified(resolved, estimate, fingerprint.source(resolved, name), use)
    root = Path(config.paths.runs)
    runs.refuse_unwritable(root)
    ids = [run.id, *([str(resolved["parent"])] if resolved.get("parent") else [])]
    [remembered] = users.begin(
        root, [users.user("run", None, "hydra.mode=RUN", Path(config.paths.reports), ids)]
    )
    record = runs.record(root / run.id)
    if record is None or not _stored(root / run.id, run):
        runs.write_spec(root, run.used(instead=record and record.failed))
    return root / run.id, remembered
