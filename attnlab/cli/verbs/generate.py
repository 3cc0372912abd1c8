"""`python -m attnlab generate`: stream a trained model's continuation of a prompt."""

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from attnlab.cli.trained_model import load_trained_model
from attnlab.config import CONF, register_resolvers
from attnlab.errors import InvalidConfig, escape_unprintable, format_suggestions
from attnlab.model.build import instantiate_config
from attnlab.model.generation import Decoder, Sampling

SAMPLING_KEYS = ("temperature", "top_k", "top_p", "seed")
PROMPT_TAIL_TOKENS = 8  # prompt tokens decoded together with new tokens
HUGGING_FACE_DECODE = "dynamic"  # default cache, since a Hugging Face config has none


def main(options: argparse.Namespace) -> int:
    """Stream the prompt and its continuation; InvalidConfig if the arguments do not fit the model."""
    arguments = options.key_values
    prompt = arguments["prompt"]
    new_tokens = arguments["new_tokens"]
    trained_model = load_trained_model(arguments)
    settings = resolve_decode_settings(trained_model.config, arguments.get("decode"))
    torch.set_num_threads(arguments["threads"])
    if not prompt:
        raise InvalidConfig("prompt is empty: give at least one token")
    stop = trained_model.encode(arguments["stop"])[-1:] if arguments.get("stop") else ()
    ids = trained_model.encode(prompt)
    cache = settings["cache"]
    if cache is not None and "length" in cache:  # room for this text, whatever the training length
        cache = {**cache, "length": max(1, len(ids) + new_tokens)}
    compiled = arguments.get("compile", bool(settings.get("compile")))
    decoder = Decoder(trained_model.model, None if cache is None else instantiate_config(cache), compiled)
    sampling = Sampling(**{key: arguments[key] for key in SAMPLING_KEYS if key in arguments})
    stream = decoder.stream_tokens([ids], new_tokens, sampling, stop)
    for piece in stream_text(trained_model.decode, (int(token.item()) for token in stream), prompt, ids):
        sys.stdout.write(escape_unprintable(piece, allowed="\n\t"))
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
        n_complete = len(text.rstrip("\ufffd"))
        yield pending_prompt + text[n_written:n_complete]
        pending_prompt = ""
        n_written = max(n_written, n_complete)
    yield decode(ids)[n_written:]


def _select_prompt_tail(decode: Callable[[Sequence[int]], str], ids: Sequence[int]) -> list[int]:
    """Select the last prompt tokens, enough to decode to text that starts with a whole character."""
    count = PROMPT_TAIL_TOKENS
    while count < len(ids) and (not (text := decode(ids[-count:])) or "\ufffd" in text):
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
