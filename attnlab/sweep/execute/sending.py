"""What W&B is sent: the files that runs leave on disk, by processes beside them, while the runs go on.

Surprising: no run ever talks to W&B. `Sending` looks for their files and hands them to W&B's own `sync`,
which follows a file as it grows. The first failure is the command's last: nothing more is sent or waited for.
W&B marks files as synced that a portal or a cut answer has swallowed, so the server is asked what it has.
"""

import base64
import json
import os
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from attnlab.config import wandb_mode
from attnlab.sweep.execute import process, slots
from attnlab.sweep.plan.checks import Context
from attnlab.training.loggers.files import records
from attnlab.training.loggers.unsent import UNSENT, command, note

MODULE = "attnlab.sweep.execute.sending"
LOOK_SECONDS = 1.0
_ASKED = """query RunStatus($project: String, $entity: String, $name: String!) {
 model(name: $project, entityName: $entity) { bucket(name: $name) { historyLineCount summaryMetrics } } }"""


class Sending:
    """Sends, where the mode is online, what `watch` names, until `end`. In any other mode it does nothing."""

    def __init__(self, root: Path, settings: Mapping[str, Any], context: Context | None) -> None:
        self.trouble = ""
        self._root, self._context = root, context
        self._settings = {"project": settings.get("project"), "entity": settings.get("entity")}
        self._patience = float(settings.get("patience", 20.0))
        self._on = wandb_mode(settings.get("mode")) == "online"
        self._watched: dict[Path, str] = {}  # a wandb/ that has an `unsent.txt`: the id of the run in it
        self._sent = list[tuple[slots.Child, list[Path], Path]]()  # batches under way: child, files, log
        self._given, self._over = set[Path](), threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True, name="sending")

    def watch(self, ids: Iterable[str]) -> None:
        """From here on the runs of the store that leave something to send are sent."""
        self._watch({self._root / name / "wandb": name for name in ids})

    def watch_report(self, name: str) -> None:
        """The same for a sweep's own run."""
        self._watch({self._root / "wandb": name})

    def _watch(self, folders: Mapping[Path, str]) -> None:
        if self._on:
            self._watched = {**self._watched, **folders}
            if self._thread.ident is None:
                self._thread.start()

    def end(self, patience: float | None = None) -> float:
        """Waits for what is not sent yet, `logger.patience` seconds in all; what is left of them."""
        began, bound = time.monotonic(), min(self._patience, patience or self._patience)
        if self._watched:
            grace = min(0.5, bound / 20)
            self._over.set()
            self._thread.join(bound / 4)
            with suppress(OSError, EOFError):
                self._finish(began + bound / 3, began + bound - 2 * grace, grace)
            self._note()
        return max(0.0, bound - (time.monotonic() - began))

    def _finish(self, settled: float, deadline: float, grace: float) -> None:
        """What grows no more is soon sent; a run that was killed never says that it ends."""
        try:
            for live, until in ((True, settled), (False, deadline)):
                self._look(live=live)
                while self._sent and not self.trouble and time.monotonic() < until:
                    time.sleep(0.05)
                    self._reap()
                late = self._sent
                self._stop(grace)
                if live:
                    self._given -= {file for _, files, _ in late for file in files}
                elif late and not self.trouble:
                    self.trouble = f"it did not take everything within {self._patience:g} s"
        finally:
            self._stop(grace)

    def _serve(self) -> None:
        while not self._over.wait(LOOK_SECONDS) and not self.trouble:
            try:
                self._reap()
                self._look(live=True)
            except (OSError, EOFError) as error:  # EOFError: the fork server ended as it was asked
                self.trouble = str(error) or "the fork server ended"

    def _look(self, live: bool) -> None:
        """Hands the files that are new to a process of their own."""
        files = [file for folder, name in self._watched.items() for file in unsent(folder, name)]
        files = [file for file in files if file not in self._given]
        if not files or self.trouble:
            return
        log = self._root / "wandb" / f"sending-{os.getpid()}-{len(self._given)}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        log.unlink(missing_ok=True)
        task = {
            "files": [str(file.absolute()) for file in files],
            "live": live,
            "own": str(self._root.absolute()),
            **self._settings,
        }
        child = slots.start(slots.Slot(0, None, 1), self._context, MODULE, [json.dumps(task)], log)
        self._given |= set(files)
        self._sent.append((child, files, log))

    def _reap(self) -> None:
        for batch in [batch for batch in self._sent if batch[0].code() is not None]:
            child, files, log = batch
            self._sent.remove(batch)
            if child.code() or not all(_mark(file).exists() for file in files):
                _unmark(files)
                said = log.read_text(errors="replace").split("\n") if log.exists() else []
                errors = [line for line in said if "ERROR" in line or line.startswith("W&B ")] or said
                last = next((line for line in errors[::-1] if line.strip()), "its process died")
                self.trouble = self.trouble or last.removeprefix("W&B ").removeprefix("wandb: ERROR ").strip()
            log.unlink(missing_ok=True)

    def _stop(self, grace: float) -> None:
        late, self._sent = self._sent, []
        slots.end([child for child, _, _ in late], grace=grace)
        for child, files, log in late:
            if child.code():
                _unmark(files)
            log.unlink(missing_ok=True)

    def _note(self) -> None:
        for folder, name in self._watched.items():
            with suppress(OSError):
                if unsent(folder, name):
                    note(folder, f"lacks this run: {self._why()}")
                else:
                    (folder / UNSENT).unlink(missing_ok=True)

    def _why(self) -> str:
        return self.trouble or "it was not sent in time"

    def tell(self) -> None:
        """One line about the runs of which not all is with the server."""
        missing = [folder for folder in self._watched if (folder / UNSENT).exists()]
        if missing:
            send = command(missing[0] if len(missing) == 1 else self._root / "*" / "wandb")
            print(f"W&B lacks {len(missing)} runs ({self._why()}); they are on disk, send them later: {send}",
                  flush=True)  # fmt: skip


def unsent(folder: Path, name: str) -> list[Path]:
    """The W&B files of a run in a wandb/ folder that are to be sent and are not with the server."""
    if not (folder / UNSENT).exists():
        return []
    return [
        file for file in sorted(folder.glob(f"*run-*-{name}/run-{name}.wandb")) if not _mark(file).exists()
    ]


def _mark(file: Path) -> Path:
    return file.with_suffix(".wandb.synced")


def _unmark(files: Iterable[Path]) -> None:
    """`wandb sync` would skip what it has marked, and what went wrong after that."""
    for file in files:
        _mark(file).unlink(missing_ok=True)


def main(arguments: list[str]) -> int:
    """The process: W&B's `sync` of some files. 0 where the server has them, else 1 after one line."""
    task = json.loads(arguments[0])
    files = [Path(file) for file in task["files"]]
    os.environ["WANDB_SERVICE"] = ""  # one of its own: it may die of the server's answers
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    os.environ["WANDB_DIR"] = task["own"]  # where it leaves its logs
    try:
        _sync(files, task["live"], Path(task["own"]))
        _require(files, task["project"], task["entity"])
    except BaseException as error:  # whatever goes wrong, or the end that it is told to come to
        with suppress(OSError):
            _unmark(files)
        said = " ".join(str(error).split()) or "W&B's own process died"
        print(f"W&B {type(error).__name__}: {said}", file=sys.stderr, flush=True)
        return 1
    return 0


def _sync(files: list[Path], live: bool, own: Path) -> None:
    """RuntimeError where W&B has not marked all of them, with what it logged: it ends as if it had.

    It may give up on a sound server too, so what it leaves is given to it once more.
    """
    from wandb.cli.cli import cli

    for _ in range(2):
        options = ["--no-skip-synced", "--no-skip-online", "-n", str(len(files))] + ["--live"] * live
        cli.main(args=["beta", "sync", *options, *map(str, files)], standalone_mode=False)
        files = [file for file in files if not _mark(file).exists()]
        if not files:
            return
    raise RuntimeError("; ".join(["W&B could not send it", *_logged_errors(own, files)[-1:]]))


def _logged_errors(own: Path, files: Iterable[Path]) -> list[str]:
    """What W&B's logs of its syncs say that went wrong with these files, in the order of time."""
    lines = [
        line for log in sorted(own.glob("wandb/logs/debug-sync.*.log"), key=os.path.getmtime)
        for line in log.read_text(errors="replace").splitlines() if any(str(file) in line for file in files)
    ]  # fmt: skip
    return [said["error"] for said in map(json.loads, lines) if said["level"] == "ERROR" and "error" in said]


def _require(files: list[Path], project: str, entity: str | None) -> None:
    """RuntimeError where the server does not have all rows and all names of the summary.

    A run can have several files, and a process beside this one may be sending another of them: each answers
    for what W&B has marked by now.
    """
    import wandb
    from wandb.sdk.lib.wbauth import session_credentials

    settings = wandb.setup().settings
    key = getattr(session_credentials(host=settings.base_url), "api_key", None)
    for file in files:
        if key is None:  # a token's holder: what W&B says is all there is
            continue
        name = file.stem.removeprefix("run-")
        whole = filter(lambda one: _mark(one).exists(), file.parent.parent.glob(f"*run-*-{name}/{file.name}"))
        rows, names = _logged(whole)
        asked = {"query": _ASKED, "variables": {"project": project, "entity": entity, "name": name}}
        login = base64.b64encode(f"api:{key}".encode()).decode()
        headers = {"Content-Type": "application/json", "Authorization": f"Basic {login}"}
        body = json.dumps(asked).encode()
        request = Request(f"{settings.base_url}/graphql", body, headers)
        with urlopen(request, timeout=10) as answer:
            model = (json.load(answer).get("data") or {}).get("model") or {}
        bucket = model.get("bucket") or {}
        has = int(bucket.get("historyLineCount") or 0)
        lacks = names - set(json.loads(bucket.get("summaryMetrics") or "{}"))
        if has < rows or lacks:
            raise RuntimeError(f"the server has {has} of {rows} rows and lacks {sorted(lacks)[:3]} of {name}")


def _logged(files: Iterable[Path]) -> tuple[int, set[str]]:
    """Of a run's W&B files: how many rows of history, and the top names of the summary."""
    rows, names = 0, set[str]()
    for file in files:
        for record in records(file.read_bytes()):
            rows += record.HasField("history")
            if record.HasField("summary"):
                names |= {item.key or item.nested_key[0] for item in record.summary.update}
    return rows, names


if __name__ == "__main__":
    sys.exit(process.guarded(main, sys.argv[1:]))
