"""What a user is told when a command cannot be carried out: one line, what, where, what to do."""

import difflib
import errno
import unicodedata
from collections.abc import Iterable, Sequence

OUT_OF_MEMORY = "out of memory"
NO_SPACE = "no space left on device"


class Refused(ValueError):
    """A command that cannot be carried out as it stands. Its text is the one line that the user reads.

    `at`: the key of the experiment that it is about, as in ("claims", 1, "metric"). Who knows where the
    experiment was written puts that before the text.
    """

    def __init__(self, text: str = "", at: Sequence[str | int] = ()) -> None:
        super().__init__(text)
        self.at = tuple(at)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception of Python's, of CUDA's allocator or of torch's on a CPU means a lack of memory."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    text = str(error).lower()  # torch's CPU allocator raises a plain RuntimeError
    return isinstance(error, RuntimeError) and ("can't allocate memory" in text or OUT_OF_MEMORY in text)


def is_host_out_of_memory(error: BaseException) -> bool:
    """Whether the host, which all runs share, had no memory left. Allocators of GPUs raise other errors."""
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM  # the host could not fork
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and "can't allocate memory" in str(error).lower()
    )


class ProcessLost(RuntimeError):
    """A signal ended a process that a run had started, such as another rank."""


def is_process_lost(error: BaseException) -> bool:
    """Whether an exception, or one behind it, reports that a signal ended a helper process of the run.

    That is a rank, or a worker of torch's DataLoader, for which torch raises a plain RuntimeError.
    """
    cause: BaseException | None = error
    while cause is not None:
        text = str(cause)
        if isinstance(cause, ProcessLost) or ("DataLoader worker" in text and "killed by signal" in text):
            return True
        cause = cause.__cause__ or cause.__context__
    return False


def printable(text: str, keep: str = "") -> str:
    """Text from elsewhere for a terminal: control characters, those that turn the direction of writing and
    halves of a character are shown as escapes (\\x1b), but for those in `keep`.
    """
    if text.isprintable():
        return text
    return "".join(
        character
        if character in keep or not _commands(character)
        else character.encode("unicode_escape").decode()
        for character in text
    )


def _commands(character: str) -> bool:
    turns = "\u202a" <= character <= "\u202e" or "\u2066" <= character <= "\u2069"
    return turns or unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp")


def no_space(error: BaseException, where: object = "the output") -> str | None:
    """`no space left on device: PATH`, where that is what an exception or one behind it comes to; else None.
    `where` stands for a path that it does not name.
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT):
            return f"{NO_SPACE}: {cause.filename or where}"
        cause = cause.__cause__ or cause.__context__
    return None


def format_seeds(seeds: Iterable[int]) -> str:
    """Seeds in order, three or more consecutive ones as a range: `0, 4 to 7`; `none` without seeds."""
    stretches: list[list[int]] = []
    for seed in sorted({*seeds}):
        if stretches and seed == stretches[-1][-1] + 1:
            stretches[-1].append(seed)
        else:
            stretches.append([seed])
    ranges = (f"{s[0]} to {s[-1]}" if len(s) > 2 else ", ".join(map(str, s)) for s in stretches)
    return ", ".join(ranges) or "none"


def nearest(name: str, names: Iterable[str], show: int = 3) -> str:
    """` (nearest: a, b)`, or all the names where there are few, or nothing where there is none."""
    names = sorted({str(known) for known in names})
    close = difflib.get_close_matches(name, names, n=show, cutoff=0.5)
    if close:
        return f" (nearest: {', '.join(close)})"
    if names and len(names) <= 12:
        return f" (there are: {', '.join(names)})"
    return ""
