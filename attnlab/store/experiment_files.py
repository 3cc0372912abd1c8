"""Locate each experiment key by file and line, which Hydra and OmegaConf drop; validate experiment files."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import yaml

from attnlab.errors import InvalidConfig
from attnlab.store.atomic_files import MAX_YAML_BYTES, read_user_text

KeyPath = Sequence[str | int]  # as in ("claims", 1, "metric")
ConfigFinder = Callable[[str], Path | None]  # config name, as in "experiment/mine" -> its file
EXPERIMENT_GROUP = "experiment"
PACKAGE_HEADER = "# @package _global_"
MAX_YAML_NODES = 10**6  # with each alias expanded
MAX_YAML_DEPTH = 100
_DEEP_BLOCK_PATTERN = re.compile(rf"^[ \-?:]{{{MAX_YAML_DEPTH}}}", re.MULTILINE)
_FastLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml is ten times as fast
_HEADER_PATTERN = re.compile(
    r"(\s*#\s*@.*\n|\s*\n)*\s*#\s*@package\s+_global_\s*$", re.MULTILINE
)  # same rule as Hydra
_DEFAULTS_ENTRY_PATTERN = re.compile(
    rf"(?:(?:optional\s+)?/{EXPERIMENT_GROUP}/)?([^/\s@][^\s@]*?)(?:\.yaml)?"
)  # an entry of the defaults list


class ExperimentFileError(InvalidConfig):
    """Error in an experiment file, with its line if known."""

    def __init__(self, path: Path, line: int | None, problem: str) -> None:
        super().__init__(f"{format_location(path, line)}: {problem}")
        self.line = line
        self.problem = problem


def validate_experiment_file(path: Path, find_file: ConfigFinder = lambda config: None) -> None:
    """Check that an experiment can be read from a file.

    Args:
        find_file: Finds the files of experiments in the defaults list, which must not form a cycle.
    """
    root = load_yaml_node(path)
    if root is None:
        raise ExperimentFileError(path, None, "the file is empty: an experiment needs a name, arms and more")
    if not isinstance(root, yaml.MappingNode):
        kind = "a list" if isinstance(root, yaml.SequenceNode) else "a single value"
        raise ExperimentFileError(
            path,
            _get_line_number(root),
            f"the file contains {kind}: an experiment is a mapping, as in name: mine",
        )
    if not _HEADER_PATTERN.match(_read_text(path)):
        raise ExperimentFileError(
            path, 1, f"the first line must be {PACKAGE_HEADER}: without it, Hydra reads no key"
        )
    for _ in _iterate_base_files(path, find_file):
        pass


def load_yaml_node(path: Path) -> yaml.Node | None:
    """Parse a YAML file into nodes with marks; None if it is empty.

    Raises:
        ExperimentFileError: The file is not valid YAML.
    """
    text = _read_text(path)
    try:
        _reject_deep_nesting(text, path)
        try:
            root = yaml.compose(text, _FastLoader)
        except yaml.YAMLError:  # the slower loader, which Hydra uses, has clearer messages
            root = yaml.compose(text, yaml.SafeLoader)
        _count_valid_nodes(root, path, {})
    except yaml.MarkedYAMLError as error:
        problem = str(error.problem)
        mark = error.problem_mark
        if "quoted scalar" in str(error.context):
            problem = "a quote opened here is never closed"
            mark = error.context_mark
        elif error.context and error.context_mark is not None:
            problem += f" ({error.context}, which began on line {error.context_mark.line + 1})"
        raise ExperimentFileError(
            path, mark.line + 1 if mark else None, f"invalid YAML: {problem}"
        ) from error
    except yaml.YAMLError as error:  # an invalid character
        raise ExperimentFileError(path, None, f"invalid YAML: {' '.join(str(error).split())}") from error
    return root


def needs_node_check(text: str) -> bool:
    """Whether YAML may hold aliases or deep nesting, which only `load_yaml_node` rejects in one line."""
    return "&" in text or _may_nest_deeply(text)


def _may_nest_deeply(text: str) -> bool:
    return text.count("[") + text.count("{") > MAX_YAML_DEPTH or bool(_DEEP_BLOCK_PATTERN.search(text))


def _reject_deep_nesting(text: str, path: Path) -> None:
    """Reject nesting that overflows the stack of libyaml, which ends the process.

    Raises:
        ExperimentFileError: It is nested more than MAX_YAML_DEPTH levels deep.
        yaml.YAMLError: It is not YAML.
    """
    depth = 0
    for event in yaml.parse(text, _FastLoader) if _may_nest_deeply(text) else ():
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_YAML_DEPTH:
            line = event.start_mark.line + 1
            raise ExperimentFileError(path, line, f"nested more than {MAX_YAML_DEPTH} levels deep: use fewer")


def find_config_file(folders: Iterable[Path], config: str) -> Path | None:
    """Return the file of a config such as "experiment/mine", in the first folder that has it."""
    files = (folder / f"{config.removesuffix('.yaml')}.yaml" for folder in folders)
    return next((file for file in files if file.is_file()), None)


def format_location(path: Path, line: int | None = None) -> str:
    """Return `conf/experiment/mine.yaml:23`, relative to the working directory if below it."""
    with suppress(ValueError):
        path = path.resolve().relative_to(Path.cwd().resolve())
    return f"{path}:{line}" if line else str(path)


def _read_text(path: Path) -> str:
    try:
        return read_user_text(path, max_bytes=MAX_YAML_BYTES)
    except UnicodeDecodeError as error:
        raise ExperimentFileError(
            path, None, f"invalid UTF-8 at byte {error.start}: save the file as UTF-8"
        ) from error
    except OSError as error:
        raise ExperimentFileError(path, None, f"cannot be read: {error.strerror}") from error


def _count_valid_nodes(root: yaml.Node | None, path: Path, counts: dict[int, int]) -> int:
    """Count the nodes with each alias expanded, as OmegaConf expands them.

    `counts` holds the results of visited nodes, and 0 for those being visited.

    Raises:
        ExperimentFileError: A mapping has a key twice, which OmegaConf would report without the file name; or
            an alias refers to a node that contains it, or the aliases expand to too many nodes.
    """
    if not isinstance(root, yaml.CollectionNode):
        return 1
    if id(root) in counts:
        if not counts[id(root)]:
            problem = "an alias refers to a value that contains it: write the value out"
            raise ExperimentFileError(path, _get_line_number(root), problem)
        return counts[id(root)]
    counts[id(root)] = 0
    count = 1
    lines: dict[str, int] = {}
    for item in root.value:
        key, value = item if isinstance(item, tuple) else (None, item)
        if isinstance(key, yaml.ScalarNode) and key.value != "<<":
            if first := lines.get(key.value):
                problem = f"duplicate key {key.value} (first on line {first}): keep one"
                raise ExperimentFileError(path, _get_line_number(key), problem)
            lines[key.value] = _get_line_number(key)
        count += _count_valid_nodes(value, path, counts)
    if count > MAX_YAML_NODES:
        problem = f"its aliases expand to more than {MAX_YAML_NODES:,} values: use fewer"
        raise ExperimentFileError(path, _get_line_number(root), problem)
    counts[id(root)] = count
    return count


def _iterate_base_files(
    path: Path, find_file: ConfigFinder, trail: tuple[Path, ...] = ()
) -> Iterator[tuple[Path, yaml.Node | None]]:
    """Yield an experiment's file, then those of its base experiments, with their nodes."""
    root = load_yaml_node(path)
    yield path, root
    trail = (*trail, path)
    defaults = _find_entry(root, ("defaults",))
    for entry in defaults[1].value if defaults and isinstance(defaults[1], yaml.SequenceNode) else ():
        pair = entry.value[0] if isinstance(entry, yaml.MappingNode) and entry.value else [entry]
        match = _DEFAULTS_ENTRY_PATTERN.fullmatch("/".join(str(part.value) for part in pair))
        base = find_file(f"{EXPERIMENT_GROUP}/{match[1]}") if match else None
        if base in trail:
            cycle = " > ".join(file.stem for file in (*trail[trail.index(base) :], base))
            raise ExperimentFileError(
                path, _get_line_number(entry), f"its defaults form a cycle, {cycle}: remove one"
            )
        if base is not None:
            yield from _iterate_base_files(base, find_file, trail)


def _find_entry(root: yaml.Node | None, key: KeyPath) -> tuple[yaml.Node, yaml.Node] | None:
    """Return the start node of an entry (its key, or in a list itself), and its value node."""
    start = root
    for part in key:
        if isinstance(root, yaml.MappingNode):
            pairs = [pair for pair in root.value if pair[0].value == str(part)]
            if not pairs:
                return None
            start, root = pairs[-1]
        elif isinstance(root, yaml.SequenceNode) and isinstance(part, int) and part < len(root.value):
            start = root = root.value[part]
        else:
            return None
    return None if start is None or root is None else (start, root)


def _get_line_number(root: yaml.Node) -> int:
    return int(root.start_mark.line) + 1


@dataclass(frozen=True)
class ExperimentSource:
    """Origin of the experiment keys: a file, and overrides on the command line (key -> override).

    Attributes:
        experiment_keys: Keys that belong to the experiment and not to the run config.
        file: None if the experiment comes from no permanent file.
    """

    experiment_keys: Sequence[str] = ()
    file: Path | None = None
    find_file: ConfigFinder = lambda config: None
    overrides: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def _file_nodes(self) -> list[tuple[Path, yaml.Node | None]]:
        return list(_iterate_base_files(self.file, self.find_file)) if self.file else []

    def get_spelling(self, key: KeyPath) -> str | None:
        """Return the spelling of a scalar value in the file; None if it is no scalar or overridden."""
        entry_nodes = next((entry for _, root in self._file_nodes if (entry := _find_entry(root, key))), None)
        is_word = entry_nodes is not None and isinstance(entry_nodes[1], yaml.ScalarNode)
        return str(entry_nodes[1].value) if entry_nodes and is_word and not self._find_override(key) else None

    def format_key_location(self, key: KeyPath) -> str:
        """Return the prefix of an error message about a key: file and line, the command line, or nothing.

        A key that a claim lacks gets the line of the claim; a key outside the experiment gets only its own
        line.
        """
        if not key or self.file is None:
            return ""
        is_experiment_key = key[0] in self.experiment_keys
        if override := self._find_override(key):
            return f"on the command line ({override}): " if is_experiment_key else ""
        for prefix in [key[:n] for n in range(len(key), 0, -1)] if is_experiment_key else [key]:
            for path, root in self._file_nodes:
                if entry := _find_entry(root, prefix):
                    return f"{format_location(path, _get_line_number(entry[0]))}: "
        return f"{format_location(self.file)}: " if is_experiment_key else ""

    @contextmanager
    def locate_errors(self) -> Iterator[None]:
        """Begin the message of an InvalidConfig with the location of its key."""
        try:
            yield
        except InvalidConfig as error:
            raise InvalidConfig(f"{self.format_key_location(error.key_path)}{error}") from error

    def _find_override(self, key: KeyPath) -> str | None:
        """Return the command-line override that sets a key, a parent of it, or its experiment key."""
        dotted_key = ".".join(map(str, key))
        is_experiment_key = key[0] in self.experiment_keys
        for name, override in self.overrides.items():
            if f"{dotted_key}.".startswith(f"{name}.") or (
                is_experiment_key and name.partition(".")[0] == key[0]
            ):
                return override
        return None
