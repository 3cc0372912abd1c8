"""Finds the file and line of each key of an experiment, which Hydra and OmegaConf do not keep, and refuses a
file that is no experiment.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import yaml

from attnlab.errors import Refused

Key = Sequence[str | int]  # as in ("claims", 1, "metric")
Find = Callable[[str], Path | None]  # the file of a config, as in "experiment/mine"
GROUP = "experiment"
PACKAGE = "# @package _global_"
_FAST = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml's, ten times as fast, where it is there
_HEAD = re.compile(r"(\s*#\s*@.*\n|\s*\n)*\s*#\s*@package\s+_global_\s*$", re.MULTILINE)  # as Hydra reads it
_BASE = re.compile(rf"(?:(?:optional\s+)?/{GROUP}/)?([^/\s@][^\s@]*?)(?:\.yaml)?")  # an entry of the defaults


class Fault(Refused):
    """What is wrong with a file, and the line where that is known."""

    def __init__(self, path: Path, line: int | None, problem: str) -> None:
        super().__init__(f"{shown(path, line)}: {problem}")
        self.line = line
        self.problem = problem


def check(path: Path, find: Find = lambda config: None) -> None:
    """Refused, one line with the line of the file, where no experiment can be read from it.

    `find` gives the files of the experiments that its defaults name, which may not lead back to it.
    """
    root = node(path)
    if root is None:
        raise Fault(path, None, "empty: an experiment states its name, its arms and more")
    if not isinstance(root, yaml.MappingNode):
        kind = "a list" if isinstance(root, yaml.SequenceNode) else "a single value"
        raise Fault(path, _line(root), f"{kind}: an experiment is keys with values, as in name: mine")
    if not _HEAD.match(_text(path)):
        raise Fault(path, 1, f"the first line must be {PACKAGE}: without it no key is read")
    for _ in _lineage(path, find):
        pass


def node(path: Path) -> yaml.Node | None:
    """What is in a YAML file, as nodes with marks; None where it is empty. Refused where it is no YAML."""
    text = _text(path)
    try:
        try:
            root = yaml.compose(text, _FAST)
        except yaml.YAMLError:  # Hydra reads with the slower one, whose messages are clearer
            root = yaml.compose(text, yaml.SafeLoader)
        _refuse_duplicates(root, path, set())
    except yaml.MarkedYAMLError as error:
        problem = str(error.problem)
        mark = error.problem_mark
        if "quoted scalar" in str(error.context):
            problem = "a quote is opened here and never closed"
            mark = error.context_mark
        elif error.context and error.context_mark is not None:
            problem += f" ({error.context}, which began in line {error.context_mark.line + 1})"
        raise Fault(path, mark.line + 1 if mark else None, f"not YAML: {problem}") from error
    except yaml.YAMLError as error:  # a character that no text has
        raise Fault(path, None, f"not YAML: {' '.join(str(error).split())}") from error
    except RecursionError as error:
        raise Fault(path, None, "not YAML that can be read: too deep") from error
    return root


def find(folders: Iterable[Path], config: str) -> Path | None:
    """The file of a config such as "experiment/mine", in the first of the folders that has it."""
    files = (folder / f"{config.removesuffix('.yaml')}.yaml" for folder in folders)
    return next((file for file in files if file.is_file()), None)


def shown(path: Path, line: int | None = None) -> str:
    """`conf/experiment/mine.yaml:23`, from the working directory where the file is below it."""
    with suppress(ValueError):
        path = path.resolve().relative_to(Path.cwd().resolve())
    return f"{path}:{line}" if line else str(path)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise Fault(path, None, f"not UTF-8 at byte {error.start}: save it as UTF-8") from error
    except OSError as error:
        raise Fault(path, None, f"cannot be read: {error.strerror}") from error


def _refuse_duplicates(root: yaml.Node | None, path: Path, seen: set[int]) -> None:
    """Fault for a key that comes twice in a mapping, which OmegaConf would refuse without its file."""
    if not isinstance(root, yaml.CollectionNode) or id(root) in seen:  # an alias may lead back
        return
    seen.add(id(root))
    lines: dict[str, int] = {}
    for item in root.value:
        key, value = item if isinstance(item, tuple) else (None, item)
        if isinstance(key, yaml.ScalarNode) and key.value != "<<":
            if first := lines.get(key.value):
                problem = f"{key.value} comes a second time (first in line {first}): keep one"
                raise Fault(path, _line(key), problem)
            lines[key.value] = _line(key)
        _refuse_duplicates(value, path, seen)


def _lineage(path: Path, find: Find, trail: tuple[Path, ...] = ()) -> Iterator[tuple[Path, yaml.Node | None]]:
    """The file of an experiment, then those of the experiments that it builds upon, with their nodes."""
    root = node(path)
    yield path, root
    trail = (*trail, path)
    found = _entry(root, ("defaults",))
    for entry in found[1].value if found and isinstance(found[1], yaml.SequenceNode) else ():
        pair = entry.value[0] if isinstance(entry, yaml.MappingNode) and entry.value else [entry]
        named = _BASE.fullmatch("/".join(str(part.value) for part in pair))
        base = find(f"{GROUP}/{named[1]}") if named else None
        if base in trail:
            way = " > ".join(file.stem for file in (*trail[trail.index(base) :], base))
            raise Fault(path, _line(entry), f"its defaults lead back to it: {way}")
        if base is not None:
            yield from _lineage(base, find, trail)


def _entry(root: yaml.Node | None, key: Key) -> tuple[yaml.Node, yaml.Node] | None:
    """The node that begins an entry (its key, or in a list itself), and that of its value."""
    begins = root
    for part in key:
        if isinstance(root, yaml.MappingNode):
            pairs = [pair for pair in root.value if pair[0].value == str(part)]
            if not pairs:
                return None
            begins, root = pairs[-1]
        elif isinstance(root, yaml.SequenceNode) and isinstance(part, int) and part < len(root.value):
            begins = root = root.value[part]
        else:
            return None
    return None if begins is None or root is None else (begins, root)


def _line(root: yaml.Node) -> int:
    return int(root.start_mark.line) + 1


@dataclass(frozen=True)
class Written:
    """Where an experiment was written: its file, and what the command line sets (key to override).

    `file` is None where the experiment comes from no file that stays; `keys` are those that are its own.
    """

    keys: Sequence[str] = ()
    file: Path | None = None
    find: Find = lambda config: None
    given: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def _files(self) -> list[tuple[Path, yaml.Node | None]]:
        return list(_lineage(self.file, self.find)) if self.file else []

    def text(self, key: Key) -> str | None:
        """A value as it is spelt in the file; None where it is no word, or another source has it."""
        found = next((entry for _, root in self._files if (entry := _entry(root, key))), None)
        is_word = found is not None and isinstance(found[1], yaml.ScalarNode)
        return str(found[1].value) if found and is_word and not self._set(key) else None

    def place(self, key: Key) -> str:
        """What to put before a complaint about a key: file and line, the command line, or nothing.

        Of a key that a claim lacks, the line of the claim; of what is no key of an experiment, nothing but
        its own line.
        """
        if not key or self.file is None:
            return ""
        ours = key[0] in self.keys
        if override := self._set(key):
            return f"on the command line ({override}): " if ours else ""
        for known in [key[:n] for n in range(len(key), 0, -1)] if ours else [key]:
            for path, root in self._files:
                if found := _entry(root, known):
                    return f"{shown(path, _line(found[0]))}: "
        return f"{shown(self.file)}: " if ours else ""

    def _set(self, key: Key) -> str | None:
        """The override of the command line that sets a key, or a part of that key of the experiment."""
        whole = ".".join(map(str, key))
        ours = key[0] in self.keys
        for name, override in self.given.items():
            if f"{whole}.".startswith(f"{name}.") or (ours and name.partition(".")[0] == key[0]):
                return override
        return None
