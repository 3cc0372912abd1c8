"""Submission of runs to a launcher: parents before children, retries, smaller batches after out-of-memory.

attnlab's launchers train stored runs by their run directories. Any other Hydra launcher gets overrides that
compose each run again and end in its id, which `hydra_job` reads.
"""

import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from filelock import Timeout

from attnlab.errors import InvalidConfig, describe_disk_full
from attnlab.store import fingerprint, run_directories
from attnlab.store.atomic_files import CHECKPOINT_NAMES
from attnlab.store.guards import ownership, trust
from attnlab.store.lease import hold_lease, is_locked
from attnlab.store.run_schema import RunConfig, RunResult
from attnlab.sweep.execute import process_control, repair
from attnlab.sweep.execute.chain import Chain, load_continued_chain
from attnlab.sweep.execute.exit_records import end_native_crash
from attnlab.sweep.execute.progress import suspend_live_region
from attnlab.sweep.execute.ranks import count_devices

FAILED = 1
MAX_RETRIES = 2  # per command, of a run whose infrastructure failed


class Submitted(BaseException):
    """Raised when a launcher leaves the runs to the cluster; like an interrupt, it passes through launchers.

    Its message has a line per fact: what was submitted, and how to follow and stop it.
    """


@runtime_checkable
class StoredRunLauncher(Protocol):
    """A launcher that trains stored runs."""

    def train(self, folders: Sequence[Path], settings: dict[str, Any]) -> None:
        """Train the runs in `folders`; return when all have ended, whatever their outcome.

        Raises:
            Submitted: the launcher waits for no run.
        """


def select_runs_to_launch(runs: Sequence[RunConfig], root: Path, retry_failed: bool) -> list[RunConfig]:
    """Select the runs to launch, each once, with the parents whose weights they need.

    These are the runs that

    - have no result;
    - failed, under `retry_failed`;
    - failed for a reason outside the run: its infrastructure, or a config key that is not part of its id;
    - are finished but need repair.
    """
    by_id = {run.id: run for run in runs}
    selected = {}
    for run in by_id.values():
        record = run_directories.load_run_result(root / run.id)
        failure = record.failure if record is not None and not record.is_done else None
        is_retried = failure is not None and (retry_failed or fingerprint.find_unhashed_key(failure.message))
        if (
            record is None
            or is_retried
            or is_retryable(record)
            or repair.needs_repair(run, record, root, retry_failed)
        ):
            selected[run.id] = run.with_provenance(retried_failure=record and record.failure_digest)
    queue = list(selected.values())
    while queue:
        parent = by_id.get(str(queue.pop().config.get("parent")))
        if parent and parent.id not in selected and repair.explain_unusable_weights(root / parent.id):
            selected[parent.id] = parent
            queue.append(parent)
    return list(selected.values())


def launch_with_retries(
    runs: Sequence[RunConfig],
    root: Path,
    experiment_names: Mapping[str, str],
    launcher: Any,
    settings: Mapping[str, Any],
) -> int:
    """Train the runs; afterwards retry infrastructure failures from their checkpoints.

    Runs that another worker retries are submitted again too: the launcher waits for them. In a command that
    continues a chain of SLURM jobs, the runs whose jobs have ended are retried.

    Args:
        runs: the runs to launch.
        root: the runs directory.
        experiment_names: run id -> name of its experiment.
        launcher: an attnlab launcher, or any Hydra launcher.
        settings: the config group `sweep`.

    Returns:
        0, or 1 if the launcher itself failed.

    Raises:
        Submitted: the launcher waits for no run.
    """
    halves_batches = bool(settings.get("halve_batch"))
    retries = not settings.get("fail_fast")
    for run in runs:
        ownership.require_file_paths(root / run.id)
    if (chain := load_continued_chain(root)) is not None:
        runs = list(_select_resubmitted(runs, root, chain, halves_batches))
    status = _submit_runs(runs, root, experiment_names, launcher, settings)
    splits: dict[str, int] = {}
    n_retries = 0
    while not status:
        smaller = [
            smaller_run
            for run in (runs if halves_batches else ())
            if (smaller_run := halve_batch(run, root)) and smaller_run.use.split > splits.get(run.id, 1)
        ]
        splits |= {run.id: run.use.split for run in smaller}
        for run in smaller:
            _print_split(run)
        failed = list[RunConfig]()
        if retries and not smaller and n_retries < MAX_RETRIES:
            failed = list(_prepare_retries(runs, root, n_retries + 1))
            n_retries += bool(failed)
        held = [run for run in runs if retries and _is_trained_elsewhere(run, root)]
        if not (smaller or failed or held):
            break
        children = [
            run
            for run in runs
            if run.config.get("parent") and not run_directories.load_run_result(root / run.id)
        ]
        again = {run.id: run for run in [*children, *held, *failed, *smaller]}
        status = _submit_runs([*again.values()], root, experiment_names, launcher, settings)
    if n_retries == MAX_RETRIES:
        for run in runs:
            end_native_crash(root / run.id, MAX_RETRIES)
    return status


def _is_trained_elsewhere(run: RunConfig, root: Path) -> bool:
    """Return whether another process trains a run: its retry deletes the earlier failure."""
    return run_directories.load_run_result(root / run.id) is None and is_locked(root / run.id)


def is_retryable(record: RunResult) -> bool:
    """Return whether a failed run is retried automatically.

    That holds if its infrastructure failed, or its device ran out of memory that others may have held.
    """
    return record.is_lost or record.status == "out_of_memory"


def _prepare_retries(runs: Sequence[RunConfig], root: Path, attempt_number: int) -> Iterator[RunConfig]:
    """Yield the runs of one retry, each marked with the failure that it retries."""
    for run in runs:
        record = run_directories.load_run_result(root / run.id)
        if record is not None and is_retryable(record) and record.failure:
            message = f"retry {attempt_number} of {MAX_RETRIES} after: {record.failure.message}"
            print(f"{run.arm} seed={run.seed}: {message}", flush=True)
            yield run.with_provenance(retried_failure=record.failure_digest)


def _select_resubmitted(
    runs: Sequence[RunConfig], root: Path, chain: Chain, halves_batches: bool
) -> Iterator[RunConfig]:
    """Yield the runs that a chain submits now: new ones, and those whose earlier job failed to train them.

    A run is submitted 1 + MAX_RETRIES times at most, counted anew after its batch was halved.
    """
    for run in runs:
        count = chain.count_submissions(run.id)
        record = run_directories.load_run_result(root / run.id)
        if count == 0:
            yield run
        elif halves_batches and (smaller := halve_batch(run, root)):
            _print_split(smaller)
            yield smaller
        elif count <= MAX_RETRIES and (record is None or is_retryable(record)):
            reason = record.failure.message if record and record.failure else "its job ended without a result"
            print(f"{run.arm} seed={run.seed}: retry {count} of {MAX_RETRIES} after: {reason}", flush=True)
            yield run
        elif count > MAX_RETRIES:
            end_native_crash(root / run.id, MAX_RETRIES)


def _print_split(run: RunConfig) -> None:
    print(f"{run.arm} seed={run.seed} ran out of memory: retrying with each batch in {run.use.split} parts")


def _submit_runs(
    runs: Sequence[RunConfig],
    root: Path,
    experiment_names: Mapping[str, str],
    launcher: Any,
    settings: Mapping[str, Any],
) -> int:
    for run in runs:
        use = {
            "experiment": experiment_names.get(run.id),
            "split": run_directories.read_batch_split(root / run.id),
        }
        run_directories.store_run_config(root, run.with_provenance(**use))
    pending = list(runs)
    index = 0
    while pending:
        ready = _select_ready_runs(pending, root)
        pending = [run for run in pending if run not in ready]
        ready = [run for run in ready if not _explain_unusable_parent(run, root)]
        if not ready:
            continue
        try:
            if isinstance(launcher, StoredRunLauncher):
                launcher.train([root / run.id for run in ready], dict(settings))
            else:
                runs_path = f"paths.runs='{root.absolute()}'"
                jobs = [[*run.use.overrides, runs_path, f"id='{run.id}'"] for run in ready]
                with suspend_live_region():
                    launcher.launch(jobs, initial_job_idx=index)
        except InvalidConfig:
            raise
        except Exception as error:  # of a third-party launcher; finished runs are on disk
            process_control.reraise_signal(error)
            if full := describe_disk_full(error, root):
                print(full, file=sys.stderr)
            else:
                traceback.print_exc()
            print("the launcher failed: the report lists the missing runs", file=sys.stderr)
            return FAILED
        index += len(ready)
    return 0


def _select_ready_runs(pending: Sequence[RunConfig], root: Path) -> list[RunConfig]:
    """Select the runs whose parent and trunk are not pending; print a line for each unusable parent."""
    pending_ids = {run.id for run in pending}
    ready = [
        run
        for run in pending
        if run.config.get("parent") not in pending_ids
        and (run.use.trunk is None or run.use.trunk.id not in pending_ids)
    ]
    for run in ready:
        if reason := _explain_unusable_parent(run, root):
            print(f"{run.arm} seed={run.seed} not started: its parent {run.config['parent']} {reason}")
    return ready


def _explain_unusable_parent(run: RunConfig, root: Path) -> str:
    """Explain why a run's parent cannot be used; empty if it can, or if there is none."""
    parent = run.config.get("parent")
    if not parent:
        return ""
    folder = root / str(parent)
    return repair.explain_unusable_weights(folder) if run_directories.is_done(folder) else "is not finished"


def validate_stored_configs(runs: Sequence[RunConfig], root: Path) -> None:
    """Check that each finished run has the config that its id stands for, and each parent trusted names.

    An edited spec.json of a finished run is written again; that of any other run is written at its launch.

    Raises:
        InvalidConfig: a run result has another config, or a parent's config was edited or names an untrusted
            target.
    """
    planned_ids = {run.id for run in runs}
    for run in runs:
        record = run_directories.load_run_result(root / run.id)
        if record is not None and record.is_done:
            file = root / run.id / "run.json"
            stored = fingerprint.to_canonical_json(fingerprint.strip_excluded_keys(record.config))
            if stored != fingerprint.to_canonical_json(fingerprint.strip_excluded_keys(run.config)):
                raise InvalidConfig(f"{file} differs from the config of run {run.id}: move that folder away")
            try:
                trust.require_trusted_names(
                    run_directories.load_run_config(root / run.id).config, file.with_name("spec.json")
                )
            except InvalidConfig as error:
                print(f"{error}; written again, as planned", flush=True)
                run_directories.restore_run_config(root, run)
        parent = root / str(run.config.get("parent"))
        if run.config.get("convert") and parent.name not in planned_ids and run_directories.is_done(parent):
            trust.require_trusted_names(run_directories.load_run_config(parent).config, parent / "spec.json")


def validate_parents(runs: Sequence[RunConfig], root: Path) -> None:
    """Check that each parent is a run of the same command or a finished run with usable weights."""
    command_ids = {run.id for run in runs}
    for run in runs:
        parent = run.config.get("parent")
        if not parent or parent in command_ids:
            continue
        folder = root / str(parent)
        if not run_directories.is_done(folder):
            raise InvalidConfig(
                f"parent={parent} of {run.arm}: neither an arm nor a finished run in {root}: train it first"
            )
        if reason := repair.explain_unusable_weights(folder):
            raise InvalidConfig(
                f"parent={parent} of {run.arm}: {reason}; repeat the command that trained it, with "
                "sweep.retry_failed=true"
            )


def halve_batch(run: RunConfig, root: Path) -> RunConfig | None:
    """Split each batch of a run that ran out of memory in twice as many parts, and delete its checkpoints.

    The gradients of the parts add up to that of the whole batch, so the run keeps its id. Workers that halve
    the batch after the same failure agree on the parts.

    Returns:
        The run as it is to be trained again; None if it did not run out of memory, its batch cannot be split
        further, or another process holds it.
    """
    folder = root / run.id
    if _load_memory_failure(folder) is None:
        return None
    with suppress(Timeout), hold_lease(folder, timeout_seconds=1.0):
        if (record := _load_memory_failure(folder)) is None:  # another worker has just retried the run
            return None
        parts = 2 * record.split
        if run.config["data"]["batch_size"] % (parts * count_devices(run.config)):
            return None
        changes = {"split": parts, "retried_failure": record.failure_digest}
        spec = run_directories.load_run_config(folder)
        run_directories.write_run_config(root, spec.with_provenance(**changes))
        for name in CHECKPOINT_NAMES:  # a checkpoint counts steps in parts of the old size
            (folder / name).unlink(missing_ok=True)
        return run.with_provenance(**changes)
    return None


def _load_memory_failure(folder: Path) -> RunResult | None:
    record = run_directories.load_run_result(folder)
    return record if record and record.status in ("out_of_memory", "host_out_of_memory") else None
