"""The Hydra task function, which makes runs work under any Hydra launcher.

With `id`, it trains the run that the sweep composed, checked and stored, in a separate process. Without it
(`hydra.mode=RUN`), it trains one run in this process, as a W&B agent requires.
"""

import sys
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from attnlab.errors import InvalidConfig, escape_unprintable
from attnlab.store import config_groups, fingerprint, remote, run_directories
from attnlab.store.guards import inputs, run_references, trust
from attnlab.store.run_schema import RunConfig, RunEstimate, RunResult, Use
from attnlab.store.safe_paths import require_run_name
from attnlab.sweep.execute import logger_sync, worker
from attnlab.sweep.execute.pool import Pool
from attnlab.sweep.execute.progress import Progress, describe_ending
from attnlab.sweep.plan.arms import make_run_config
from attnlab.sweep.plan.composer import extract_axes, resolve_config
from attnlab.sweep.plan.trainer import get_trainer_name, load_trainer
from attnlab.training.loggers import logger_notes


def run_job(config: DictConfig) -> RunResult | None:
    """Train a run and return its result.

    Failures of the run are recorded, not raised, because launchers handle exceptions differently.
    """
    if config.get("id"):
        folder = Path(config.paths.runs) / require_run_name("id", str(config.id))
        trust.declare_names([resolve_config(config)])
        trust.load_trusted_run(folder)
        sweep_config: Any = OmegaConf.to_container(config.sweep, resolve=True)
        settings = {**sweep_config, "slots": 1}
        Pool(settings, Progress({folder: folder.name}), None).run([folder])
        return run_directories.load_run_result(folder)
    folder, reference_file = _prepare_run(config)
    logger: Any = OmegaConf.to_container(config.get("logger") or OmegaConf.create(), resolve=True)
    status = worker.train_run(folder)
    run_references.delete_reference(reference_file)
    logger_sync.log_missing_runs([folder], logger, {}, None)
    print(
        escape_unprintable(f"{describe_ending(run_directories.load_run_result(folder))}  {folder}"),
        flush=True,
    )
    if line := logger_notes.format_pending_uploads(folder.parent, [folder.name]):
        print(escape_unprintable(line), flush=True)
    logger_notes.clear_offline(folder.parent)  # this process is a command of its own
    if status:
        sys.exit(status)
    return run_directories.load_run_result(folder)


def _has_stored_config(folder: Path, run: RunConfig) -> bool:
    """Return whether the stored config equals this run's; training and measuring read the stored one."""
    try:
        return run_directories.load_run_config(folder).config == run.config
    except InvalidConfig:
        return False


def _prepare_run(config: DictConfig) -> tuple[Path, Path]:
    """Store the run's config; return its run directory and the file that references it."""
    resolved: Any = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    config_groups.validate_groups(resolved, config_groups.SWEEP_GROUPS)
    inputs.validate_inputs(resolved)
    trust.declare_names([resolved])
    name = get_trainer_name(resolved)
    estimate = RunEstimate.model_validate({"device_kind": "cpu", **load_trainer(name).check(resolved)})
    use = Use(arm="run", axes=extract_axes(HydraConfig.get().runtime.choices))
    run = make_run_config(resolved, estimate, fingerprint.hash_run_source(resolved, name), use)
    root = remote.open_store(config.paths.runs, config.paths.get("cache"), writable=True)
    run_directories.require_writable_folder(root)
    ids = [run.id, *([str(resolved["parent"])] if resolved.get("parent") else [])]
    [reference_file] = run_references.write_references(
        root,
        [run_references.create_reference("run", None, "hydra.mode=RUN", Path(config.paths.reports), ids)],
    )
    record = run_directories.load_run_result(root / run.id)
    if record is None or not _has_stored_config(root / run.id, run):
        run_directories.write_run_config(
            root, run.with_provenance(retried_failure=record and record.failure_digest)
        )
    return root / run.id, reference_file
