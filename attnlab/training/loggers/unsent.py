"""The note beside what W&B has not been sent: why, and the very command that sends it later."""

from pathlib import Path
from shlex import quote

UNSENT = "unsent.txt"  # in a wandb/, from the beginning of a run until all of it is with the server


def note(folder: Path, why: str) -> None:
    """Writes it into a wandb/ folder, in one line. OSError where that cannot be."""
    folder.mkdir(parents=True, exist_ok=True)
    text = f"W&B {' '.join(why.split())}. It is on disk, send it: {command(folder)}\n"
    (folder / UNSENT).write_text(text, encoding="utf-8")


def command(folder: Path) -> str:
    """What sends the runs of a wandb/ folder."""
    return f"wandb sync {quote(str(folder.absolute()))}/*run-*"
