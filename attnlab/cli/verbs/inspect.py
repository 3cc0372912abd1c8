"""`python -m attnlab inspect`: where a trained model looks in a text of yours, in the terminal and as a page.

    python -m attnlab inspect run=ID text="the cat sat on the mat"
    python -m attnlab inspect checkpoint=FOLDER text="..." layer=2 head=0 to=FOLDER

A checkpoint is a run's folder, or a local Hugging Face folder with its tokenizer.json. Nothing in a folder is
executed that the run's own config does not name, and nothing is trained.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_model

from attnlab.errors import Refused, nearest
from attnlab.measure.heads import LONGEST, head_scores
from attnlab.measure.maps import Maps, attention_maps, encode
from attnlab.model.build import build_model, make
from attnlab.model.transformer import LearnedPositions, Transformer

KEYS = ("run", "checkpoint", "text", "layer", "head", "top", "to", "runs")
USAGE = 'inspect what? As in: python -m attnlab inspect run=ID text="the cat sat on the mat" layer=0 head=1'
SHOWN = 0.0005  # what prints as 0.000 is no link
MOST = 512  # tokens of a text; a larger map cannot be looked at


@dataclass(frozen=True)
class Subject:
    """A model, and how text becomes tokens for it: (ids, the words to show)."""

    name: str
    model: Transformer
    tokens: Callable[[str], tuple[list[int], list[str]]]
    length: int  # the longest text that it was made for
    seed: int = 0


def main(arguments: Sequence[str]) -> int:
    """The verb. Refused, one line, where something is missing."""
    options = _options(arguments)
    subject = _subject(options)
    ids, words = subject.tokens(options["text"])
    if not ids:
        raise Refused("text is empty: give some words, as in text='the cat sat on the mat'")
    limit = min(MOST, subject.length) if _bounded(subject.model) else MOST
    if len(ids) > limit:
        raise Refused(f"the text has {len(ids)} tokens, and at most {limit} can be looked at: shorten it")
    tokens = torch.tensor([ids])
    maps = attention_maps(subject.model, tokens)
    if maps is None:
        raise Refused(f"{subject.name} has layers without attention, so there are no maps to look at")
    layers, heads = maps.weights.shape[:2]
    layer, head = (_number(options, key, count) for key, count in (("layer", layers), ("head", heads)))
    print(links(maps.weights.numpy(), words, layer, head, _number(options, "top", 100) or 3))
    folder = Path(options.get("to") or Path("reports") / "inspect" / subject.name)
    page = _write(folder, subject, maps, tokens, words, layer, head)
    print(f"\npage: {page}")
    return 0


def _options(arguments: Sequence[str]) -> dict[str, str]:
    options: dict[str, str] = {}
    for word in arguments:
        key, equals, value = word.partition("=")
        if not equals or key not in KEYS:
            raise Refused(f"inspect does not know {word!r}{nearest(key, KEYS)}. {USAGE}")
        options[key] = value
    if "text" not in options or ("run" in options) == ("checkpoint" in options):
        raise Refused(f"inspect needs text=, and one of run= and checkpoint=. {USAGE}")
    return options


def _number(options: dict[str, str], key: str, count: int) -> int | None:
    if key not in options:
        return None
    value = options[key]
    if not value.isdecimal() or int(value) >= count:
        raise Refused(f"{key}={value}: it must be a whole number from 0 to {count - 1}")
    return int(value)


def _bounded(model: Transformer) -> bool:
    return isinstance(model.positions, LearnedPositions)


def _subject(options: dict[str, str]) -> Subject:
    if "run" in options:
        store = Path(options.get("runs", "runs"))
        found = [path for path in sorted(store.glob(f"{options['run']}*")) if (path / "spec.json").is_file()]
        if len(found) != 1:
            what = f"{len(found)} runs" if found else "no run"
            raise Refused(f"run={options['run']}: there is {what} of that name in {store}; give the whole id")
        return _run(found[0])
    folder = Path(options["checkpoint"])
    if (folder / "spec.json").is_file():
        return _run(folder)
    if (folder / "config.json").is_file():
        return _hugging_face(folder)
    raise Refused(
        f"checkpoint={folder}: has neither spec.json (a run's folder) nor config.json (a Hugging Face folder)"
    )


def _run(folder: Path) -> Subject:
    weights = folder / "model.safetensors"
    if not weights.is_file():
        raise Refused(f"{folder} has no model.safetensors: the run did not finish")
    try:
        config = json.loads((folder / "spec.json").read_text("utf-8"))["config"]
    except (ValueError, KeyError) as error:
        raise Refused(f"{folder / 'spec.json'} is broken: run its command again") from error
    task = make(config["data"]).task
    model = build_model(config, task.vocab_size)
    try:
        load_model(model, str(weights))
    except Exception as error:  # safetensors has its own kinds
        raise Refused(f"{weights} cannot be loaded: {' '.join(str(error).split())[:200]}") from error

    def tokens(text: str) -> tuple[list[int], list[str]]:
        ids = list(task.encode(text))
        return ids, task.decode(ids)

    return Subject(folder.resolve().name, model.eval(), tokens, task.length, config["seed"])


def _hugging_face(folder: Path) -> Subject:
    from attnlab.model.huggingface.convert import load

    if not (folder / "tokenizer.json").is_file():
        raise Refused(
            f"{folder} has no tokenizer.json, so text cannot be turned into its tokens: put it there"
        )
    _, model = load(folder)
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))

    def tokens(text: str) -> tuple[list[int], list[str]]:
        found = tokenizer.encode(text)
        words = [text[a:b] or name for (a, b), name in zip(found.offsets, found.tokens, strict=True)]
        return found.ids, words

    length = model.positions.table.num_embeddings if _bounded(model) else LONGEST
    return Subject(folder.resolve().name, model.float(), tokens, length)


def links(
    weights: np.ndarray, words: Sequence[str], layer: int | None, head: int | None, top: int = 3
) -> str:
    """A line per token: the strongest links from it to tokens up to it, over the heads that are asked for.

    weights [layer, head, T, T]. A link names its head unless only one was asked for.
    """
    chosen = [
        (a, b)
        for a in range(weights.shape[0])
        for b in range(weights.shape[1])
        if layer in (None, a) and head in (None, b)
    ]
    shown = [json.dumps(word, ensure_ascii=False) for word in words]
    wide = max(map(len, shown))
    lines = []
    for query, word in enumerate(shown):
        rows = [(float(weights[a, b, query, key]), a, b, key) for a, b in chosen for key in range(len(words))]
        best = sorted((row for row in rows if row[0] >= SHOWN), key=lambda row: (-row[0], *row[1:]))[:top]
        said = (
            f"{value:.3f} {shown[key]}@{key}" + (f" ({a}.{b})" if len(chosen) > 1 else "")
            for value, a, b, key in best
        )
        lines.append(f"{query:4} {word:{wide}} -> {'   '.join(said)}")
    of = f"layer {layer}, head {head}" if len(chosen) == 1 else f"{len(chosen)} heads; (layer.head)"
    return f"strongest links of every token, {of}\n" + "\n".join(lines)


def _write(
    folder: Path,
    subject: Subject,
    maps: Maps,
    tokens: torch.Tensor,
    words: list[str],
    layer: int | None,
    head: int | None,
) -> Path:
    from attnlab.report.pages import explorer

    arrays = {
        "maps": encode(maps.weights)[None],
        "visible": maps.visible.numpy(),
        "steps": np.zeros(1, int),
        "tokens": np.array(words),
        "groups": maps.groups.numpy(),
    }
    scores = head_scores(subject.model, [tokens[:, :LONGEST]], min(subject.length, LONGEST))
    kernels = {"max_abs_eager_fused": maps.difference, "note": None}
    return explorer.write(folder, subject.name, subject.seed, arrays, scores, kernels, layer, head)
