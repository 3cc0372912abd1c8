"""An experiment's YAML file as it is written: whether it can be one, and on which lines its keys stand.

Hydra and OmegaConf give values without their places; YAML's nodes know them.
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


class Fault(Refused):
    """What is wrong with a file, and the line where that is known."""

    def __init__(self, path: Path, line: int | None, problem: str) -> None:
        super().__init__(f"{shown(path, line)}: {problem}")
        self.line, self.problem = line, problem


def check(path: Path, find: Find = lambda config: None) -> None:
    """Refused, one line with the line of the file, where no experiment can be read from it.

    `find` gives the files of its defaults, which may not lead back to it.
    """
    root = node(path)
    if root is None:
        raise Fault(path, None, "empty: an experiment states its name, its arms and more")
    if not isinstance(root, yaml.MappingNode):
        kind = "a list" if isinstance(root, yaml.SequenceNode) else "a single value"
        raise Fault(path, _line(root), f"{kind}: an experiment is keys with values, as in name: mine")
    if _package(_text(path)) != "_global_":
        raise Fault(path, 1, f"the first line must be {PACKAGE}: without it no key is read")
    _refuse_circle((f"{GROUP}/{path.stem}",), path, find)


def node(path: Path) -> yaml.Node | None:
    """What is in a YAML file, as nodes with marks; None where it is empty. Refused where it is no YAML."""
    text = _text(path)
    try:
        try:
            root = yaml.compose(text, _FAST)
        except yaml.YAMLError:  # the other one has the last word: Hydra reads with it
            root = yaml.compose(text, yaml.SafeLoader)
        _refuse_twice(root, path, set())
    except yaml.MarkedYAMLError as error:
        raise _reading(error, path) from error
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


def _reading(error: yaml.MarkedYAMLError, path: Path) -> Fault:
    """YAML's complaint, which has three lines or more, as one."""
    problem, mark = str(error.problem), error.problem_mark
    if "quoted scalar" in str(error.context):
        problem, mark = "a quote is opened here and never closed", error.context_mark
    elif mark is not None and "\t" in "".join(_text(path).splitlines()[mark.line : mark.line + 1]):
        problem = f"{problem}: a tab stands here, and YAML is indented with blanks"
    elif error.context and error.context_mark is not None:
        problem += f" ({error.context}, which began in line {error.context_mark.line + 1})"
    return Fault(path, mark.line + 1 if mark else None, f"not YAML: {problem}")


def _refuse_twice(root: yaml.Node | None, path: Path, seen: set[int]) -> None:
    """OmegaConf refuses a key that comes twice; here, with its line."""
    if root is None or id(root) in seen:  # an alias may lead back
        return
    seen.add(id(root))
    if isinstance(root, yaml.SequenceNode):
        for item in root.value:
            _refuse_twice(item, path, seen)
    elif isinstance(root, yaml.MappingNode):
        lines: dict[str, int] = {}
        for key, value in root.value:
            if isinstance(key, yaml.ScalarNode) and key.value != "<<":
                if key.value in lines:
                    raise Fault(
                        path,
                        _line(key),
                        f"{key.value} comes a second time (first in line {lines[key.value]}): keep one",
                    )
                lines[key.value] = _line(key)
            _refuse_twice(value, path, seen)


def _package(text: str) -> str | None:
    """The package that the head names: among the first lines, before any other comment, as Hydra reads it."""
    for line in text.splitlines():
        if match := re.match(r"\s*#\s*@package\s+(\S+)\s*$", line):
            return match[1]
        if line.strip() and not re.match(r"\s*#\s*@", line):
            break
    return None


def defaults(path: Path, group: str = GROUP) -> Iterator[tuple[str, int]]:
    """The configs that the defaults of a file of a group name, as in "experiment/other", with their lines."""
    found = _at(node(path), ("defaults",))
    for entry in found.value if isinstance(found, yaml.SequenceNode) else ():
        if isinstance(entry, yaml.ScalarNode):
            yield _config(group, "", entry.value), _line(entry)
        elif isinstance(entry, yaml.MappingNode) and len(entry.value) == 1:
            key, value = entry.value[0]
            words = str(key.value).split()
            for option in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                if words and words[0] != "override" and isinstance(option, yaml.ScalarNode):
                    yield _config(group, words[-1], option.value), _line(entry)


def _config(base: str, group: str, option: str) -> str:
    """From the group of the file that names it, or from the root after a slash."""
    path = "/".join(part for part in (group.partition("@")[0], option) if part).removesuffix(".yaml")
    return path[1:] if path.startswith("/") else "/".join(part for part in (base, path) if part)


def _refuse_circle(trail: tuple[str, ...], path: Path, find: Find) -> None:
    for config, line in defaults(path, trail[-1].rpartition("/")[0]):
        if config in trail:
            way = " > ".join([*trail[trail.index(config) :], config])
            raise Fault(path, line, f"its defaults lead back to it: {way}")
        if (file := find(config)) is not None:
            _refuse_circle((*trail, config), file, find)


def _at(root: yaml.Node | None, key: Key) -> yaml.Node | None:
    """The node of a value; None where there is none of that key."""
    found = _entry(root, key)
    return found[1] if found else None


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
        """The file, then the experiments that it builds upon."""
        files: list[Path] = [self.file] if self.file else []
        for path in files:
            named = [self.find(config) for config, _ in defaults(path) if config.startswith(f"{GROUP}/")]
            files += [found for found in named if found is not None and found not in files]
        return [(path, node(path)) for path in files]

    def text(self, key: Key) -> str | None:
        """A value as it is spelt in the file; None where it is no word, or another source has it."""
        if self._set(key):
            return None
        found = next((at for _, root in self._files if (at := _at(root, key)) is not None), None)
        return str(found.value) if isinstance(found, yaml.ScalarNode) else None

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
        whole, ours = ".".join(map(str, key)), key[0] in self.keys
        for name, override in self.given.items():
            if f"{whole}.".startswith(f"{name}.") or (ours and name.partition(".")[0] == key[0]):
                return override
        return None
