"""`python -m attnlab corpus`: what a text is made of, and a file of it that another machine reads alike.

Only the text is read: nothing is tokenised, and nothing is trained.
"""

import argparse
import filecmp
import inspect
import os
from pathlib import Path
from tempfile import TemporaryDirectory

from attnlab.cli.bench.setup import composed
from attnlab.cli.words import split
from attnlab.data.corpora.corpus import Corpus, held_out
from attnlab.data.corpora.frozen import freeze
from attnlab.data.text import OPENS
from attnlab.errors import Refused, nearest, printable
from attnlab.store.files import replacing
from attnlab.training.targets import located

DEEDS = ("show", "export")


def main(options: argparse.Namespace) -> int:
    """Prints what the corpus is; `export` also writes it."""
    deeds, overrides = split(options.words)
    if len(deeds) != 1 or deeds[0] not in DEEDS:
        given = deeds[0] if deeds else "nothing"
        raise Refused(f"corpus {given}: name one of {', '.join(DEEDS)}{nearest(given, DEEDS)}")
    to = options.given.get("to")
    if (to is None) == (deeds[0] == "export"):
        raise Refused("corpus export needs to=FILE, and corpus show takes none")
    data = composed(overrides)["data"]
    opens = OPENS.get(located(data["task"]["_target_"]))
    if opens is None:
        raise Refused("there is no text to show: give data=pydocs, text, code, hub or frozen")
    corpus = opens(**{name: data[name] for name in inspect.signature(opens).parameters})
    print("\n".join(map(printable, told(corpus, data["val_fraction"]))))
    if to is not None:
        export(corpus, Path(to))
    return 0


def told(corpus: Corpus, val_fraction: float) -> list[str]:
    """The lines that say what a corpus is."""
    about = corpus.about
    lines = [f"{about.name}: {about.bytes:,} bytes", f"fingerprint {about.fingerprint}"]
    lines += [", ".join(f"{what} {count:,}" for what, count in about.counts.items())] if about.counts else []
    lines += [f"made of {', '.join(about.sources[:50])}"] if about.sources else []
    if len(about.sources) > 50:
        lines[-1] += f" and {len(about.sources) - 50:,} more"
    if about.origin and not about.sources:
        lines.append(f"from {about.origin}")
    if about.groups:
        chosen = held_out(about.groups, val_fraction)
        sizes = sorted(((size, name) for name, size in about.groups if name in chosen), reverse=True)
        share = sum(size for size, _ in sizes) / about.bytes
        most = ", ".join(name for _, name in sizes[:10])
        lines.append(
            f"validation is on {len(sizes)} of {len(about.groups)} packages, {share:.1%} of the bytes: {most}"
            + (", ..." if len(sizes) > 10 else "")
        )
    return lines


def export(corpus: Corpus, to: Path) -> None:
    """Writes the file, unless it is there. Refused where another one is, which stays as it is."""
    if not to.parent.is_dir() or to.is_dir():
        raise Refused(f"to={to}: give a file in a folder that is there")
    try:
        with TemporaryDirectory(prefix=f".{to.name}.", dir=to.parent) as folder:
            with replacing(Path(folder, to.name)) as temporary:
                freeze(corpus, temporary)
            if not os.path.lexists(to):
                Path(folder, to.name).replace(to)
            elif not to.is_file() or not filecmp.cmp(Path(folder, to.name), to, shallow=False):
                raise Refused(f"to={to} is there, with other content: name another file, or remove it")
    except OSError as error:
        raise Refused(f"to={to} cannot be written: {error.strerror}") from error
    size = to.stat().st_size
    print(printable(f"written to {to}: {size:,} bytes; read it with data=frozen data.path={to}"))
