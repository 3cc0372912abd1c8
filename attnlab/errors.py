"""Errors that a user can fix, as one line: problem, place, remedy."""

import difflib
import errno
import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import Path

OUT_OF_MEMORY = "out of memory"
NO_SPACE = "no space left on device"
MAX_ERROR_LENGTH = 2000  # characters of a printed error


class InvalidConfig(ValueError):
    """An invalid command or config. The message is the one line that the user reads.

    Args:
        key_path: the invalid key of the experiment, as in ("claims", 1, "metric"). Code that knows the
            experiment's file prefixes the message with file and line.
    """

    def __init__(self, message: str = "", key_path: Sequence[str | int] = ()) -> None:
        super().__init__(message)
        self.key_path = tuple(key_path)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether Python, an allocator of CUDA, cuBLAS or cuDNN, or torch's CPU allocator ran out of memory."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    text = str(error).lower()  # all but CUDA's allocator raise a plain RuntimeError
    phrases = ("can't allocate memory", "status_alloc_failed", OUT_OF_MEMORY)
    return isinstance(error, RuntimeError) and any(phrase in text for phrase in phrases)


def is_host_out_of_memory(error: BaseException) -> bool:
    """Whether the host, which all runs share, ran out of memory. GPU allocators raise other errors."""
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM  # the host could not fork
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and "can't allocate memory" in str(error).lower()
    )


class HelperProcessKilled(RuntimeError):
    """A signal killed a process that a run had started, such as another rank."""


def is_helper_process_killed(error: BaseException) -> bool:
    """Whether an exception or one of its causes reports that a signal killed a helper process of the run.

    Helper processes are ranks and DataLoader workers; for the latter torch raises a plain RuntimeError.
    """
    cause: BaseException | None = error
    while cause is not None:
        text = str(cause)
        if isinstance(cause, HelperProcessKilled) or (
            "DataLoader worker" in text and "killed by signal" in text
        ):
            return True
        cause = cause.__cause__ or cause.__context__
    return False


def find_invalid_byte(text: str) -> tuple[int, int] | None:
    """Find the first byte that is not UTF-8, which Python stores as a lone surrogate: its place and value."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return error.start, ord(text[error.start]) & 0xFF
    return None


def escape_unprintable(text: str, allowed: str = "") -> str:
    """Escape untrusted text for a terminal.

    Control characters, bidirectional overrides and lone surrogates become escapes (\\x1b), except for the
    characters in `allowed`.
    """
    if text.isprintable():
        return text
    return "".join(
        character
        if character in allowed or not _is_control(character)
        else character.encode("unicode_escape").decode()
        for character in text
    )


def format_error_line(message: str) -> str:
    """Format an error for a terminal: escaped, and without the middle of a message of many thousand letters.

    Messages quote the values of users' files, which may be of any length; the remedy is at the end.
    """
    message = escape_unprintable(message)
    if len(message) > MAX_ERROR_LENGTH:
        half = (MAX_ERROR_LENGTH - len(" [...] ")) // 2
        message = f"{message[:half]} [...] {message[-half:]}"
    return message


def _is_control(character: str) -> bool:
    is_bidirectional = "\u202a" <= character <= "\u202e" or "\u2066" <= character <= "\u2069"
    return is_bidirectional or unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp")


def describe_disk_full(error: BaseException, default_path: object = "the output") -> str | None:
    """Format `no space left on device: PATH` if an exception or one of its causes is a full disk, else None.

    `default_path` is printed when the exception names no file.
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT):
            return f"{NO_SPACE}: {cause.filename or default_path}"
        cause = cause.__cause__ or cause.__context__
    return None


def is_disk_failure(error: BaseException) -> bool:
    """Whether a disk is full, or it or the server of a network disk failed."""
    if describe_disk_full(error) is not None:
        return True
    name = errno.errorcode.get(error.errno or 0) if isinstance(error, OSError) else None
    return name in ("EIO", "ESTALE", "EREMOTEIO")  # errno lacks the last one on some systems


# Of a file, folder or link of the user's that attnlab cannot use.
_PATH_ERRORS = (
    errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.ENOTEMPTY, errno.ELOOP, errno.EACCES, errno.EPERM,
    errno.EROFS, errno.EINVAL, errno.EFBIG, errno.ENXIO, errno.ENODEV, errno.ENOTSUP, errno.EBUSY,
    errno.ETXTBSY, errno.EXDEV,
)  # fmt: skip
_PACKAGE = str(Path(__file__).parent)


def describe_path_error(error: OSError) -> str | None:
    """Format the error of an unusable path, such as a folder in place of a file, as one line; else None.

    A missing file of attnlab's own is a bug, and any other a path of the user's.
    """
    path = str(error.filename2 or error.filename)
    if error.filename is None or isinstance(error.filename, int):
        return None
    if error.errno == errno.ENOENT and not path.startswith(_PACKAGE):
        return f"{path}: {error.strerror}: choose another path, or create it"
    if error.errno not in _PATH_ERRORS:
        return None
    return f"{path}: {error.strerror}: move it away, or change its permissions, and run the command again"


def describe_read_error(error: Exception) -> str:
    """Format why a file could not be read, in one line without its name."""
    return getattr(error, "strerror", None) or " ".join(str(error).split())


def describe_exit(error: BaseException) -> str:
    """Format that a part of the user's raised SystemExit or KeyboardInterrupt, as by `exit()`."""
    return f"a part ends the program ({error!r}): raise ValueError in its place"


def describe_lack_of_resources(error: BaseException) -> str | None:
    """Format an exception or a cause of it that is a full disk, a limit of open files or lack of memory."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in (errno.EMFILE, errno.ENFILE):
            return "too many open files: raise the limit, as with ulimit -n 1024"
        if is_host_out_of_memory(cause):
            return f"{OUT_OF_MEMORY}: free some, or use smaller files or a smaller model"
        cause = cause.__cause__ or cause.__context__
    return describe_disk_full(error)


def format_seeds(seeds: Iterable[int]) -> str:
    """Format sorted seeds with runs of three or more as ranges: `0, 4 to 7`; `none` without seeds."""
    consecutive: list[list[int]] = []
    for seed in sorted({*seeds}):
        if consecutive and seed == consecutive[-1][-1] + 1:
            consecutive[-1].append(seed)
        else:
            consecutive.append([seed])
    ranges = (
        f"{group[0]} to {group[-1]}" if len(group) > 2 else ", ".join(map(str, group))
        for group in consecutive
    )
    return ", ".join(ranges) or "none"


# Old -> new names of keys, groups and options: a close-match search would not suggest the new name.
RENAMED = {
    "texts": "corpora", "exchange": "compute_calibration", "held": "controlled", "steady": "robust",
    "widen": "extend", "growing": "dynamic", "rolling": "sliding", "alike": "uniform",
    "normaliser": "normalizer", "normalisers": "normalizers",
}  # fmt: skip


def format_suggestions(name: str, known_names: Iterable[str]) -> str:
    """Format a hint for an unknown name: ` (nearest: a, b)`, to append to an error message.

    Lists all names if there are at most 12 and none is close, and the new name of a renamed key. Empty if
    there is nothing to suggest.
    """
    *parents, last = name.split(".")
    if last in RENAMED:
        return f" ({name} was renamed to {'.'.join([*parents, RENAMED[last]])})"
    known_names = sorted({str(known) for known in known_names})
    close = difflib.get_close_matches(name, known_names, cutoff=0.5)
    if close:
        return f" (nearest: {', '.join(close)})"
    if known_names and len(known_names) <= 12:
        return f" (available: {', '.join(known_names)})"
    return ""
