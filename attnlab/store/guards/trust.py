"""What a stored config may name: parts of attnlab, a few classes of torch and Lightning, what this command
composes itself, and what the user has trusted once, which is remembered in the user's own configuration.

A run folder, a record or a report may be anybody's, and what it names is imported and called. The configs of
one's own command line are code like any other, and are not asked for here.
"""

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from attnlab.errors import Refused
from attnlab.store import fingerprint
from attnlab.store.declarations import Experiment
from attnlab.store.files import replacing

PARTS = (
    "attnlab.attention", "attnlab.data.ar_hits", "attnlab.data.copying", "attnlab.data.drawn",
    "attnlab.data.induction", "attnlab.data.module", "attnlab.data.names", "attnlab.data.needle",
    "attnlab.data.recall", "attnlab.data.synthetic", "attnlab.data.text", "attnlab.data.tokenizers",
    "attnlab.measure.studies",
    "attnlab.model.block", "attnlab.model.experts", "attnlab.model.parametrization",
    "attnlab.model.pooling", "attnlab.model.recurrent", "attnlab.model.residual",
    "attnlab.model.transformer", "attnlab.training.loggers", "attnlab.training.module",
    "attnlab.training.optim",
)  # fmt: skip
LIBRARIES = {  # where a name of theirs may begin: where the class that it leads to may live
    "torch.nn": ("torch.nn.modules",),
    "pytorch_lightning.Trainer": ("pytorch_lightning.trainer.trainer",),
    "pytorch_lightning.callbacks": ("pytorch_lightning.callbacks",),
    "pytorch_lightning.loggers": ("pytorch_lightning.loggers",),
    "pytorch_lightning.profilers": ("pytorch_lightning.profilers",),
}
GETTERS = tuple(f"hydra.utils.get_{kind}" for kind in ("class", "method", "object", "static_method"))
TRAINER = "attnlab.training.run"
_NEVER = frozenset({"attnlab", "hydra", "hydra_plugins", "omegaconf", *sys.stdlib_module_names})
_UNREAD = frozenset({*Experiment.key_names(), "hydra"})  # nothing is built of them


def refuse_unknown(config: Mapping[str, Any], file: Path, own: Iterable[str] = ()) -> None:
    """Refused, one line with the key, the name and `file`, for the first name in a stored config that is not
    to be looked up. `own`: the names that this very command composes. Looks nothing up, so imports nothing.
    """
    own = set(own)
    roots = _roots(own)
    for key, name in _named(config, file):
        if name in own:
            continue
        if any(part.startswith("__") or not part.isidentifier() for part in name.split(".")):
            raise Refused(f"{file}: {key} = {name} is no name that a stored config may have")
        if not _under(name, (*PARTS, *LIBRARIES, *roots)):
            raise Refused(_told(file, key, name, name))


def refuse_strange(config: Mapping[str, Any], file: Path, own: Iterable[str] = ()) -> None:
    """The same, and for what a name leads to: a module may hold another's things under a name of its own.

    Imports what is named, torch among it.
    """
    own = set(own)
    refuse_unknown(config, file, own)
    roots = _roots(own)
    for key, name in _named(config, file):
        if name in own:
            continue
        thing = _found(name, f"{file}: {key} = {name}")
        owner = thing.__name__ if isinstance(thing, ModuleType) else str(getattr(thing, "__module__", ""))
        if _under(owner, roots) or (_under(name, PARTS) and _under(owner, PARTS) and _at_the_top(thing)):
            continue
        homes = next((homes for start, homes in LIBRARIES.items() if _under(name, [start])), ())
        if not (isinstance(thing, type) and _under(owner, homes)):
            raise Refused(_told(file, key, name, f"{owner}.{getattr(thing, '__name__', '')}".strip(".")))


def names(config: Mapping[str, Any]) -> set[str]:
    """What a config of this very command names: for `own`."""
    trainer = str((config.get("sweep") or {}).get("train") or TRAINER)
    return {trainer, *(name for name in fingerprint.targets(config) if not name.startswith("hydra."))}


def trusted() -> tuple[str, ...]:
    """The modules that the user has trusted."""
    try:
        return tuple(_remembered().read_text(encoding="utf-8").split())
    except (OSError, ValueError):
        return ()


def trust(module: str) -> Path:
    """Remembers a module as trusted; returns the file that does. Refused for what is nobody's module."""
    if not all(part.isidentifier() for part in module.split(".")):
        raise Refused(f"--trust {module}: give the name of a module, as in --trust mine")
    if module.split(".")[0] in _NEVER:
        raise Refused(f"--trust {module}: nothing of Python's own or of the harness is trusted as a whole")
    file = _remembered()
    if module not in trusted():
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            with replacing(file) as temporary:
                temporary.write_text("".join(f"{name}\n" for name in (*trusted(), module)), encoding="utf-8")
        except OSError as error:
            raise Refused(f"--trust {module}: {file} cannot be written ({error.strerror})") from error
    return file


def _remembered() -> Path:
    home = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(home) / "attnlab" / "trusted"


def _roots(own: Iterable[str]) -> tuple[str, ...]:
    """What may be looked up beside the parts: the modules that the user trusts, or composes."""
    composed = {name.rpartition(".")[0] or name for name in own}
    return tuple(sorted(root for root in {*trusted(), *composed} if root.split(".")[0] not in _NEVER))


def _named(config: Mapping[str, Any], file: Path) -> Iterator[tuple[str, str]]:
    """(key, dotted name) of everything that is built of a stored config, its layers' patches applied.

    Refused where that could be told only by building it: a name that is no text, an interpolation.
    """
    read = {key: value for key, value in config.items() if key not in _UNREAD}
    model = read.get("model")
    if isinstance(model, Mapping) and model.get("layers"):
        mixer = model.get("mixer") or model.get("attention")
        read["model"] = {key: value for key, value in model.items() if key != "layers"}
        read["layers"] = _patched(mixer, model["layers"], file)
    try:
        yield from _located(read, "")
    except ValueError as error:
        raise Refused(f"{file}: {error}") from error


def _patched(mixer: Any, layers: Any, file: Path) -> list[Any]:
    """Each layer's mixer, as it will be built."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        return [OmegaConf.to_container(OmegaConf.merge(mixer, patch)) for patch in layers]
    except (OmegaConfBaseException, TypeError, ValueError) as error:
        raise Refused(f"{file}: model.layers cannot be read: {' '.join(str(error).split())}") from error


def _located(node: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(node, str) and "${" in node:
        raise ValueError(f"{path} = {node!r} is an interpolation, and what is stored has none")
    if isinstance(node, list | tuple):
        for i, item in enumerate(node):
            yield from _located(item, f"{path}[{i}]")
    if not isinstance(node, Mapping):
        return
    prefix = f"{path}." if path else ""
    if "_target_" in node:
        target = node["_target_"]
        if not isinstance(target, str):
            raise ValueError(f"{prefix}_target_ = {target!r} is no text")
        if target in GETTERS:
            if set(node) != {"_target_", "path"} or not isinstance(node["path"], str):
                raise ValueError(f"{prefix}_target_ = {target} takes a path, a text, and nothing else")
            yield f"{prefix}path", node["path"]
        else:
            yield f"{prefix}_target_", target
    for key, value in node.items():
        if path == "sweep" and key == "train" and value not in (None, TRAINER):
            yield "sweep.train", str(value)  # the module that trains
        if "${" in str(key):
            raise ValueError(f"{prefix}{key} is an interpolation, and what is stored has none")
        yield from _located(value, f"{prefix}{key}")


def _found(name: str, where: str) -> Any:
    """What Hydra finds under a name, found by Hydra itself."""
    from hydra.utils import get_object

    try:
        return get_object(name)
    except Exception as error:  # a module may raise anything while it is imported
        raise Refused(f"{where} cannot be found: {' '.join(str(error).split())[:200]}") from error


def _at_the_top(thing: Any) -> bool:
    """Whether it is no method of a class: those take any object for their own."""
    return "." not in str(getattr(thing, "__qualname__", ""))


def _under(name: str, roots: Iterable[str]) -> bool:
    return any(name == root or name.startswith(f"{root}.") for root in roots)


def _told(file: Path, key: str, name: str, leads_to: str) -> str:
    alias = "" if leads_to == name else f", which is {leads_to or 'nobody knows whose'}"
    text = (
        f"{file}: {key} = {name}{alias}: a stored config may name parts of attnlab and what you trust alone"
    )
    module = leads_to.rpartition(".")[0]
    if not module or module.split(".")[0] in _NEVER or not module.replace(".", "_").isidentifier():
        return text
    return f"{text}; if you know the module {module} and mean it, say --trust {module} once"
