"""Step times after training: one exclusive process times all arms' final weights while nothing else runs.

Times are cached in `runs/timing/`, in a file named by the digest of the timed runs and the measuring code. A
failure is reported and never fatal.
"""

import importlib
import json
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from pydantic import ValidationError

from attnlab.errors import InvalidConfig
from attnlab.report.schema import TimingResult
from attnlab.store import fingerprint
from attnlab.store.atomic_files import read_json, write_json
from attnlab.store.guards import trust
from attnlab.store.source_digests import hash_sources
from attnlab.sweep.execute import node_setup, process_control, repair, worker_slots
from attnlab.sweep.plan.fork_server import Context
from attnlab.sweep.plan.trainer import get_trainer_name, load_trainer
from attnlab.sweep.slow_notice import notify_if_slow

MEASURE_MODULE = "attnlab.measure.step_timing"
TITLE = "timing the arms, one at a time"
_WRONG_DEVICE = 3  # exit status: the runs were trained on another kind of device


@notify_if_slow(TITLE)
def measure_arm_times(
    folders: dict[str, Path],
    device_kind: str,
    context: Context | None,
    announce: Callable[[str], None] = lambda line: None,
) -> tuple[TimingResult | None, str]:
    """Return the arms' step times, cached or measured now, and a note with the reason if there are none.

    Args:
        folders: arm -> run directory of one finished run of the arm; fewer than two arms are not timed.
        device_kind: the device that the runs were planned for; "cpu", or a GPU's name.
        context: fork server of the timing process; None starts a new interpreter.
        announce: prints a line before a measurement.
    """
    if len(folders) < 2:
        return None, "timing needs two arms with a finished run"
    root = next(iter(folders.values())).parent / "timing"
    sources = hash_sources([MEASURE_MODULE], excluded_packages=fingerprint.OBSERVER_MODULES)
    digest = fingerprint.compute_digest([{arm: folder.name for arm, folder in folders.items()}, sources])
    path = root / f"{digest}.json"
    if (times := _load_times(path)) is not None:
        return times, ""
    for folder in folders.values():
        if reason := repair.explain_unusable_weights(folder):
            return None, reason
    root.mkdir(parents=True, exist_ok=True)
    log = path.with_suffix(".log")
    arguments = [str(path), json.dumps({arm: str(folder) for arm, folder in folders.items()})]
    slot = (
        worker_slots.list_worker_slots(device_kind, 1)[0]
        if device_kind != "cpu"
        else worker_slots.WorkerSlot(0, None, 1)
    )  # one thread, so that the times are those of any sweep.slots
    announce(TITLE)
    code = worker_slots.run_child(slot, context, __name__, arguments, log)
    if code == _WRONG_DEVICE:
        return (
            None,
            f"this machine has no {device_kind}: repeat the command on a machine that has one",
        )
    times = _load_times(path) if code == 0 else None
    if times is None:
        return None, f"the timing process exited with status {code}: see {log}"
    return times, ""


def _load_times(path: Path) -> TimingResult | None:
    """Return the times in a file; None if it is missing or invalid, so that the arms are timed again."""
    with suppress(ValidationError):
        return TimingResult.model_validate(read_json(path))
    return None


def main(arguments: list[str]) -> int:
    """Time the arms in this process.

    Args:
        arguments: output file; arm -> run directory as JSON.

    Raises:
        InvalidConfig: a config was edited, or names a target that is neither trusted nor declared.
    """
    path = Path(arguments[0])
    folders = {arm: Path(folder) for arm, folder in json.loads(arguments[1]).items()}
    specs = [trust.load_trusted_run(folder) for folder in folders.values()]
    try:
        node_setup.validate_device_kind(load_trainer(get_trainer_name(specs[0].config)), specs[0])
    except InvalidConfig as error:
        print(error)
        return _WRONG_DEVICE
    times = TimingResult.model_validate(importlib.import_module(MEASURE_MODULE).measure_timings(folders))
    write_json(path, times.to_dict())
    return 0


if __name__ == "__main__":
    sys.exit(process_control.run_guarded(main, sys.argv[1:]))
