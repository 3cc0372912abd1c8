"""`python -m attnlab generate`: what a trained model writes after a prompt of yours, as it writes it."""

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from attnlab.cli.load import load
from attnlab.config import CONF, register_resolvers
from attnlab.errors import Refused, nearest, printable
from attnlab.model.build import make
from attnlab.model.generation import Decoder, Sampling

SAMPLING = ("temperature", "top_k", "top_p", "seed")
CONTEXT = 8  # tokens of the prompt that new ones are decoded behind
FOREIGN_CACHE = "growing"  # a Hugging Face folder names no value of the axis decode


def main(options: argparse.Namespace) -> int:
    """Streams the prompt and what follows. Refused, one line, where it cannot be done."""
    given = options.given
    prompt = given["prompt"]
    new_tokens = given["new_tokens"]
    trained = load(given)
    settings = decode_settings(trained.config, given.get("decode"))
    torch.set_num_threads(given["threads"])
    if not prompt:
        raise Refused("prompt is empty: generation goes on from at least one token")
    stop = trained.encode(given["stop"])[-1:] if given.get("stop") else ()
    ids = trained.encode(prompt)
    cache = settings["cache"]
    if cache is not None and "length" in cache:  # room for this text, whatever the model was trained at
        cache = {**cache, "length": max(1, len(ids) + new_tokens)}
    compiled = given.get("compile", bool(settings.get("compile")))
    decoder = Decoder(trained.model, None if cache is None else make(cache), compiled)
    sampling = Sampling(**{key: given[key] for key in SAMPLING if key in given})
    stream = decoder.stream([ids], new_tokens, sampling, stop)
    for piece in pieces(trained.decode, (int(token.item()) for token in stream), prompt, ids):
        sys.stdout.write(printable(piece, keep="\n\t"))
        sys.stdout.flush()
    print()
    return 0


def pieces(
    decode: Callable[[Sequence[int]], str], tokens: Iterator[int], prompt: str, given: Sequence[int]
) -> Iterator[str]:
    """The prompt with the first new piece of text, then the others; half a character waits for its rest.

    New tokens are decoded behind the last of those `given`, the prompt's, since a decoder may leave away the
    space that its first token begins with.
    """
    ids = _last(decode, given)
    ahead = prompt
    written = len(decode(ids))
    for token in tokens:
        ids.append(token)
        text = decode(ids)
        whole = len(text.rstrip("\ufffd"))
        yield ahead + text[written:whole]
        ahead = ""
        written = max(written, whole)
    yield decode(ids)[written:]


def _last(decode: Callable[[Sequence[int]], str], ids: Sequence[int]) -> list[int]:
    """A few tokens from the end, or as many more as it takes to begin with a character, and with text."""
    count = CONTEXT
    while count < len(ids) and (not (text := decode(ids[-count:])) or "\ufffd" in text):
        count *= 2
    return list(ids[-count:])


def decode_settings(config: Mapping[str, Any], name: str | None) -> Mapping[str, Any]:
    """`decode` of a config, or another value of that axis; what its yaml refers to must be in the config."""
    if name is None and "decode" in config:
        return config["decode"]
    name = FOREIGN_CACHE if name is None else name
    path = CONF / "decode" / f"{name}.yaml"
    known = [other.stem for other in path.parent.glob("*.yaml")]
    if name not in known:
        raise Refused(f"decode has no option {name}{nearest(name, known)}")
    register_resolvers()
    without: dict[Any, Any] = {**config, "decode": {}}
    merged = OmegaConf.merge(without, OmegaConf.load(path))
    try:
        resolved: Any = OmegaConf.to_container(merged.decode, resolve=True)
    except OmegaConfBaseException as error:
        lacks = str(error).splitlines()[0]
        raise Refused(f"decode={name} needs what this model's config does not have: {lacks}") from error
    return resolved
