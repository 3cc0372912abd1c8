"""`python -m attnlab corpus`: describe a corpus, or export it as one reproducible file.

Reads only the text: nothing is tokenized, and nothing is trained.
"""

import argparse
import filecmp
import inspect
import os
from pathlib import Path
from tempfile import TemporaryDirectory

from attnlab.cli.kv_args import split_words
from attnlab.cli.own_options import list_search_path
from attnlab.cli.run_config import compose_run_config
from attnlab.data.corpora.corpus import Corpus, choose_validation_groups
from attnlab.data.corpora.frozen import freeze_corpus
from attnlab.data.text import CORPUS_LOADERS
from attnlab.errors import InvalidConfig, escape_unprintable, format_suggestions
from attnlab.store.atomic_files import replace_atomically
from attnlab.sweep.plan.overrides import parse_overrides, reject_duplicate_keys
from attnlab.training.targets import locate_target

ACTIONS = ("show", "export")
VALIDATION_KEYS = {  # keys of `data` that name a validation text, and the keys of the training text
    "validation_path": "path",
    "validation_split": "split",
}


def main(options: argparse.Namespace) -> int:
    """Print the description of a corpus; `export` also writes the file."""
    actions, overrides = split_words(options.words)
    if len(actions) != 1 or actions[0] not in ACTIONS:
        action_name = actions[0] if actions else "nothing"
        suggestions = format_suggestions(action_name, ACTIONS)
        raise InvalidConfig(
            f"corpus {action_name}: unknown action; use one of {', '.join(ACTIONS)}{suggestions}"
        )
    destination = options.key_values.get("to")
    if (destination is None) == (actions[0] == "export"):
        raise InvalidConfig("to=FILE is required by corpus export and invalid for corpus show")
    reject_duplicate_keys(parse_overrides(overrides), can_sweep=False)
    data = compose_run_config([*list_search_path(options.config_dir), *overrides])["data"]
    load_corpus = CORPUS_LOADERS.get(locate_target(data["task"]["_target_"]))
    if load_corpus is None:
        raise InvalidConfig("the config selects no corpus: set data=pydocs, text, code, hub or frozen")
    validation_key = next((key for key in VALIDATION_KEYS if data.get(key) is not None), None)
    if destination is not None and validation_key is not None:
        raise InvalidConfig(
            f"data.{validation_key}: export writes one text: export it on its own with"
            f" data.{VALIDATION_KEYS[validation_key]}, or set data.{validation_key}=null"
        )
    parameters = inspect.signature(load_corpus).parameters
    values = {name: data[name] for name in parameters if name in data}
    corpus = load_corpus(**values)
    print("\n".join(map(escape_unprintable, describe_corpus(corpus, data["val_fraction"]))))
    if validation_key is not None:
        validation = load_corpus(**values | {VALIDATION_KEYS[validation_key]: data[validation_key]})
        description = describe_corpus(validation, data["val_fraction"])
        print("\n".join(map(escape_unprintable, ["validation:", *description])))
    if destination is not None:
        export_corpus(corpus, Path(destination))
    return 0


def describe_corpus(corpus: Corpus, val_fraction: float) -> list[str]:
    """Format a corpus's size, fingerprint, sources and validation split as lines."""
    metadata = corpus.metadata
    lines = [f"{metadata.name}: {metadata.bytes:,} bytes", f"fingerprint {metadata.fingerprint}"]
    lines += (
        [", ".join(f"{unit} {count:,}" for unit, count in metadata.counts.items())] if metadata.counts else []
    )
    lines += [f"sources: {', '.join(metadata.sources[:50])}"] if metadata.sources else []
    if len(metadata.sources) > 50:
        lines[-1] += f" and {len(metadata.sources) - 50:,} more"
    if metadata.origin and not metadata.sources:
        lines.append(f"origin: {metadata.origin}")
    if metadata.groups:
        validation_groups = choose_validation_groups(metadata.groups, val_fraction)
        sizes = sorted(
            ((size, name) for name, size in metadata.groups if name in validation_groups), reverse=True
        )
        proportion = sum(size for size, _ in sizes) / metadata.bytes
        largest_groups = ", ".join(name for _, name in sizes[:10])
        lines.append(
            f"validation uses {len(sizes)} of {len(metadata.groups)} packages, {proportion:.1%} of "
            f"the bytes: {largest_groups}" + (", ..." if len(sizes) > 10 else "")
        )
    return lines


def export_corpus(corpus: Corpus, destination: Path) -> None:
    """Write the file unless it exists with equal content; InvalidConfig if it exists with other content."""
    if not destination.parent.is_dir() or destination.is_dir():
        raise InvalidConfig(f"to={destination}: its folder does not exist: give a file in an existing folder")
    try:
        with TemporaryDirectory(prefix=f".{destination.name}.", dir=destination.parent) as folder:
            with replace_atomically(Path(folder, destination.name)) as temporary:
                freeze_corpus(corpus, temporary)
            if not os.path.lexists(destination):
                Path(folder, destination.name).replace(destination)
            elif not destination.is_file() or not filecmp.cmp(
                Path(folder, destination.name), destination, shallow=False
            ):
                raise InvalidConfig(
                    f"to={destination} already exists with other content: choose another file, or remove it"
                )
    except OSError as error:
        raise InvalidConfig(
            f"to={destination} cannot be written ({error.strerror}): choose another file"
        ) from error
    size = destination.stat().st_size
    print(
        escape_unprintable(
            f"written to {destination}: {size:,} bytes; use it with data=frozen data.path={destination}"
        )
    )
