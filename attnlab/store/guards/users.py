"""Who uses the runs of a store: a file per command in `users/`, written before its first run begins.

So a run is known to be used whoever declared its experiment: a file of the user's own, or `compare`. Once a
command has written its report, the report keeps its runs. The runs of a command that was killed are kept
until it is forgotten by name.
"""

import os
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from attnlab.store import fingerprint
from attnlab.store.files import read_json, write_json
from attnlab.store.guards import marks
from attnlab.store.lease import HOST
from attnlab.store.schema import Record

WHAT: Literal["a user of attnlab's runs"] = "a user of attnlab's runs"


class User(Record):
    """One report to be, or where `experiment` is None a command without one.

    `reports` is its paths.reports, `report` the folder of its report, `published` when that was last written,
    `forgotten` when a person said that it keeps its runs no more; paths are absolute.
    """

    what: Literal["a user of attnlab's runs"] = WHAT
    title: str
    experiment: str | None
    command: str
    reports: str
    report: str | None
    runs: tuple[str, ...]
    began: str
    published: str | None = None
    forgotten: str | None = None
    host: str
    pid: int

    @property
    def names(self) -> set[str]:
        """What it may be called: its experiment, or its title where the command changed that."""
        return {self.title, self.experiment or self.title}

    @property
    def is_running(self) -> bool:
        """Whether its command still runs on this host."""
        if self.published or self.host != HOST:
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:  # another user's process
            return True
        return True


def user(title: str, experiment: str | None, command: str, reports: Path, runs: Iterable[str]) -> User:
    """This process as a user of runs, from now on."""
    return User(
        title=title,
        experiment=experiment,
        command=command,
        reports=str(reports.absolute()),
        report=str((reports / title).absolute()) if experiment else None,
        runs=tuple(sorted(set(runs))),
        began=_now(),
        host=HOST,
        pid=os.getpid(),
    )


def begin(root: Path, users: Sequence[User], instead: Sequence[Path] = ()) -> list[Path]:
    """Remembers them, in place of what this command said before; returns their files.

    Waits while runs are being removed: which of them are still there is known after it.
    """
    marks.mark(root)
    folder = root / marks.USERS
    folder.mkdir(exist_ok=True)
    paths = [folder / _name(one) for one in users]
    with marks.guarding(root):
        for path, one in zip(paths, users, strict=True):
            write_json(path, one.plain())
        for path in instead:
            if path not in paths:
                path.unlink(missing_ok=True)
    return paths


def published(path: Path) -> None:
    """Remembers that a user's report was written; where that cannot be, its runs are kept like those of a
    command that was killed.
    """
    one = _read(path)
    with suppress(OSError):
        if one is not None:
            write_json(path, one.model_copy(update={"published": _now()}).plain())


def forget(path: Path, one: User) -> None:
    """A user keeps its runs no more, until its command is given again."""
    write_json(path, one.model_copy(update={"forgotten": _now()}).plain())


def ended(path: Path) -> None:
    """Forgets a user."""
    with suppress(OSError):
        path.unlink(missing_ok=True)


def all_of(root: Path) -> tuple[dict[Path, User], list[Path]]:
    """The users of a store, and the files that cannot be read as one."""
    found = dict[Path, User]()
    broken = list[Path]()
    for path in sorted((root / marks.USERS).glob("[!.]*.json")):
        one = _read(path)
        if one is None:
            broken.append(path)
        else:
            found[path] = one
    return found, broken


def _read(path: Path) -> User | None:
    with suppress(OSError, ValidationError):
        return User.model_validate(read_json(path))
    return None


def _name(one: User) -> str:
    """One name for the same report of the same runs: the same command again takes the place of the last."""
    title = re.sub(r"[^A-Za-z0-9_.~-]", "_", one.title).lstrip(".")[:100]
    return f"{title}~{fingerprint.digest([one.report, one.runs], 8)}.json"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
