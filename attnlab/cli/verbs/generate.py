"""`python -m attnlab generate`: stream a trained model's continuation of a prompt."""

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any

import torch
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from attnlab.cli.select_model import load_selected_model
from attnlab.config import CONF, register_resolvers
from attnlab.errors import InvalidConfig, escape_unprintable, format_suggestions
from attnlab.model.build import instantiate_config
from attnlab.model.generation import Decoder, Sampling

SAMPLING_KEYS = ("temperature", "top_k", "top_p", "seed")
PROMPT_TAIL_TOKENS = 8  # prompt tokens decoded together with new tokens
NO_STOP = "none"  # value of stop= that generates past the end token
INVALID_BYTES = "".join(map(chr, range(0xDC80, 0xDD00)))  # as "surrogateescape" decodes them
INCOMPLETE = f"\ufffd{INVALID_BYTES}"  # ends of a text that more tokens may complete
HUGGING_FACE_DECODE = "dynamic"  # default cache, since a Hugging Face config has none


def main(options: argparse.Namespace) -> int:
    """Stream the prompt and its continuation; InvalidConfig if the arguments do not fit the model."""
    arguments = options.key_values
    prompt = arguments["prompt"]
    new_tokens = arguments["new_tokens"]
    trained_model = load_selected_model(arguments)
    settings = resolve_decode_settings(trained_model.config, arguments.get("decode"))
    torch.set_num_threads(arguments["threads"])
    ids = trained_model.encode(prompt)
    if not ids:
        raise InvalidConfig("prompt is empty: give at least one token")
    stop_text = arguments.get("stop")
    end_ids = () if stop_text == NO_STOP else trained_model.end_ids
    stop = [*end_ids, *(trained_model.encode(stop_text)[-1:] if stop_text not in (None, "", NO_STOP) else ())]
    if inner := [n for n, token in enumerate(ids) if n and token in trained_model.end_ids]:
        print(
            f"warning: token {inner[0]} of the prompt is the model's end token ({ids[inner[0]]}); models are "
            "not trained to continue a text after its end",
            file=sys.stderr,
        )
    cache = settings["cache"]
    if cache is not None and "length" in cache:  # room for this text, whatever the training length
        cache = {**cache, "length": max(1, len(ids) + new_tokens)}
    compiled = arguments.get("compile", bool(settings.get("compile")))
    decoder = Decoder(trained_model.model, None if cache is None else instantiate_config(cache), compiled)
    sampling = Sampling(**{key: arguments[key] for key in SAMPLING_KEYS if key in arguments})
    stream = decoder.stream_tokens([ids], new_tokens, sampling, stop)
    tokens = takewhile(lambda token: token not in end_ids, (int(token.item()) for token in stream))
    for piece in stream_text(trained_model.decode, tokens, prompt, ids):
        sys.stdout.write(escape_unprintable(escape_bytes(piece), allowed="\n\t"))
        sys.stdout.flush()
    print()
    return 0


def stream_text(
    decode: Callable[[Sequence[int]], str], tokens: Iterator[int], prompt: str, prompt_ids: Sequence[int]
) -> Iterator[str]:
    """Yield the prompt with the first new piece of text, then the following pieces.

    An incomplete character is held back until its remaining bytes arrive. New tokens are decoded together
    with the last tokens of the prompt, since a decoder may drop the leading space of its first token.
    """
    ids = _select_prompt_tail(decode, prompt_ids)
    pending_prompt = prompt
    n_written = len(decode(ids))
    for token in tokens:
        ids.append(token)
        text = decode(ids)
        n_complete = len(text.rstrip(INCOMPLETE))
        yield pending_prompt + text[n_written:n_complete]
        pending_prompt = ""
        n_written = max(n_written, n_complete)
    yield pending_prompt + decode(ids)[n_written:]


def escape_bytes(text: str) -> str:
    """Write each invalid byte as an escape (\\xc3) instead of a lone surrogate."""
    return "".join(f"\\x{ord(c) - 0xDC00:02x}" if c in INVALID_BYTES else c for c in text)


def _select_prompt_tail(decode: Callable[[Sequence[int]], str], ids: Sequence[int]) -> list[int]:
    """Select the last prompt tokens, enough to decode to text that starts with a whole character."""
    count = PROMPT_TAIL_TOKENS
    while count < len(ids) and (not (text := decode(ids[-count:])) or not {*text}.isdisjoint(INCOMPLETE)):
        count *= 2
    return list(ids[-count:])


def resolve_decode_settings(config: Mapping[str, Any], option: str | None) -> Mapping[str, Any]:
    """Return a config's `decode` settings, or another option of that group resolved against the config."""
    if option is None and "decode" in config:
        return config["decode"]
    option = HUGGING_FACE_DECODE if option is None else option
    path = CONF / "decode" / f"{option}.yaml"
    known_options = [path_of_option.stem for path_of_option in path.parent.glob("*.yaml")]
    if option not in known_options:
        raise InvalidConfig(f"decode has no option {option}{format_suggestions(option, known_options)}")
    register_resolvers()
    config_without_decode: dict[Any, Any] = {**config, "decode": {}}
    merged = OmegaConf.merge(config_without_decode, OmegaConf.load(path))
    try:
        resolved: Any = OmegaConf.to_container(merged.decode, resolve=True)
    except OmegaConfBaseException as error:
        missing_key = str(error).splitlines()[0]
        raise InvalidConfig(
            f"decode={option} needs {missing_key}, which the config of this model lacks: choose "
            "another option of decode"
        ) from error
    return resolved
