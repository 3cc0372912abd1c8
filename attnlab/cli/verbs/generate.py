"""`python -m attnlab generate`: what a trained model writes after a prompt of yours, as it writes it.

    python -m attnlab generate run=ID prompt="the " new_tokens=200 temperature=0.8 top_p=0.95 seed=1
    python -m attnlab generate checkpoint=FOLDER prompt="..." decode=static compile=true

A checkpoint is a run's folder, or a local Hugging Face folder with its tokenizer.json. Weights are read from
safetensors only; nothing in a folder is executed that the run's own config does not name.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf
from safetensors.torch import load_model

from attnlab.config import CONF, register_resolvers
from attnlab.errors import Refused, nearest
from attnlab.model.build import build_model, make
from attnlab.model.generation import Decoder, Sampling
from attnlab.model.transformer import Transformer
from attnlab.store.files import read_json

NUMBERS: Mapping[str, Callable[[str], Any]] = {
    "new_tokens": int, "temperature": float, "top_k": int, "top_p": float, "seed": int, "threads": int,
}  # fmt: skip
KEYS = ("run", "checkpoint", "prompt", "stop", "decode", "compile", "runs", *NUMBERS)
USAGE = 'As in: python -m attnlab generate run=ID prompt="the " new_tokens=200 temperature=0.8'


@dataclass(frozen=True)
class Writer:
    """A model, its text in and out of tokens, and the resolved config of its cache."""

    model: Transformer
    encode: Callable[[str], list[int]]
    decode: Callable[[list[int]], str]
    config: Mapping[str, Any]  # holds `decode`, and what its values refer to


def main(arguments: Sequence[str]) -> int:
    """The verb: streams the prompt and what follows. Refused, one line, where it cannot be done."""
    options = _options(arguments)
    writer = _with_cache(_open(options), options.get("decode"))
    numbers = {key: _number(key, options[key], NUMBERS[key]) for key in NUMBERS if key in options}
    torch.set_num_threads(max(1, numbers.pop("threads", 1)))
    new_tokens = numbers.pop("new_tokens", 200)
    prompt = options["prompt"]
    if not prompt:
        raise Refused(f"prompt is empty: generation goes on from at least one token. {USAGE}")
    stop = writer.encode(options["stop"])[-1:] if options.get("stop") else ()
    ids, decode = writer.encode(prompt), writer.config["decode"]
    cache = decode["cache"]
    if cache is not None and "length" in cache:  # room for this text, whatever the model was trained at
        cache = {**cache, "length": max(1, len(ids) + new_tokens)}
    compiled = _flag(options.get("compile", str(decode.get("compile", False))))
    decoder = Decoder(writer.model, None if cache is None else make(cache), compiled)
    stream = decoder.stream([ids], new_tokens, Sampling(**numbers), stop)
    for piece in pieces(writer.decode, (token.item() for token in stream), prompt):
        sys.stdout.write(piece)
        sys.stdout.flush()
    print()
    return 0


def pieces(decode: Callable[[list[int]], str], tokens: Iterator[int], prompt: str) -> Iterator[str]:
    """The prompt with the first new piece of text, then the others; half a character waits for its rest."""
    ids: list[int] = []
    told = 0
    for token in tokens:
        if not ids:
            yield prompt
        ids.append(token)
        text = decode(ids)
        whole = len(text) - text.endswith("\ufffd")
        yield text[told:whole]
        told = max(told, whole)
    yield decode(ids)[told:]


def _options(arguments: Sequence[str]) -> dict[str, str]:
    options: dict[str, str] = {}
    for word in arguments:
        key, equals, value = word.partition("=")
        if not equals or key not in KEYS:
            raise Refused(f"generate does not know {word!r}{nearest(key, KEYS)}. {USAGE}")
        options[key] = value
    if "prompt" not in options or ("run" in options) == ("checkpoint" in options):
        raise Refused(f"generate needs prompt=, and one of run= and checkpoint=. {USAGE}")
    return options


def _number(key: str, value: str, kind: Callable[[str], Any]) -> Any:
    try:
        return kind(value)
    except ValueError:
        what = "a whole number" if kind is int else "a number"
        raise Refused(f"{key}={value}: it must be {what}") from None


def _flag(value: str) -> bool:
    if value.lower() not in ("true", "false"):
        raise Refused(f"compile={value}: it must be true or false")
    return value.lower() == "true"


def _open(options: Mapping[str, str]) -> Writer:
    if "run" in options:
        store, name = Path(options.get("runs", "runs")), options["run"]
        known = [path.parent for path in sorted(store.glob("*/spec.json"))]
        found = [path for path in known if name and path.name.startswith(name)]
        if len(found) != 1:
            near = nearest(name, [path.name for path in found or known])
            raise Refused(f"run={name}: {len(found) or 'no'} runs of that name in {store}{near}")
        return _run(found[0])
    folder = Path(options["checkpoint"])
    folder = folder.parent if folder.name == "model.safetensors" else folder
    if (folder / "spec.json").is_file():
        return _run(folder)
    if (folder / "config.json").is_file():
        return _hugging_face(folder)
    raise Refused(f"checkpoint={folder}: neither spec.json (a run's folder) nor config.json is in it")


def _run(folder: Path) -> Writer:
    weights, spec = folder / "model.safetensors", read_json(folder / "spec.json")
    if not isinstance(spec, dict) or "config" not in spec:
        raise Refused(f"{folder / 'spec.json'} is cut short: run its command again")
    if not weights.is_file():
        raise Refused(f"{folder} has no model.safetensors: the run did not finish")
    config = spec["config"]
    task = make(config["data"]).task
    model = build_model(config, task.vocab_size)
    try:
        load_model(model, str(weights))
    except Exception as error:  # safetensors has its own kinds, torch another
        raise Refused(f"{weights} cannot be loaded: {' '.join(str(error).split())[:200]}") from error
    between = "" if task.unit in ("char", "byte", "bpe") else " "
    return Writer(model.eval(), task.encode, lambda ids: between.join(task.decode(ids)), config)


def _hugging_face(folder: Path) -> Writer:
    from tokenizers import Tokenizer

    from attnlab.model.huggingface.convert import load

    if not (folder / "tokenizer.json").is_file():
        raise Refused(f"{folder} has no tokenizer.json, so text cannot be turned into its tokens")
    config, model = load(folder)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    config = {"model": config, "data": {"length": 1}, "decode": {"cache": None}}
    writer = Writer(model, lambda text: tokenizer.encode(text).ids, tokenizer.decode, config)
    return _with_cache(writer, "growing")


def _with_cache(writer: Writer, name: str | None) -> Writer:
    """The writer with another value of the axis `decode`."""
    if name is None:
        return writer
    path = CONF / "decode" / f"{name}.yaml"
    if not path.is_file():
        known = [other.stem for other in path.parent.glob("*.yaml")]
        raise Refused(f"decode has no option {name}{nearest(name, known)}")
    register_resolvers()
    merged = OmegaConf.merge(dict(writer.config) | {"decode": {}}, OmegaConf.load(path))
    if name == "rolling" and OmegaConf.select(merged, "model.attention.masks.window.size") is None:
        raise Refused("decode=rolling needs a model whose mask is a window; use growing or static")
    decode = OmegaConf.to_container(merged.decode, resolve=True)
    return replace(writer, config=dict(writer.config) | {"decode": decode})
