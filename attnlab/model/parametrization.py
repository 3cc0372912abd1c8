"""How a model is scaled as it gets wider: initial values, rates and multipliers, all from one table.

A rate that is best at one width is best at another only where every activation, and what a step changes of
it, keeps its size as the width grows (Yang 2022, 2203.03466; Adam's column of its table 8, in which the
readout starts as at the base width and is divided in the forward pass, so that it can be tied). Surprising:
everything is counted from a base width, at which `mup` is bit for bit `standard`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, final

from torch import Tensor, nn

from attnlab.attention.layer import Attention


class Row(NamedTuple):
    """Of a tensor, over what it would have at the base width: its initial scale, Adam's rate, Muon's, and
    what it is multiplied with in the forward pass. Muon None: AdamW has it.
    """

    init: float = 1.0
    adam: float = 1.0
    muon: float | None = None
    forward: float = 1.0


def table(width: float = 1.0, head: float = 1.0) -> dict[str | None, Row]:
    """Kind of tensor to its row, where the model is `width` times as wide as its base, and the queries and
    keys of a head `head` times. The factors, m for the first and h for the second:

    | kind    | what it is                             | initial | Adam   | Muon   | forward  |
    |---------|----------------------------------------|---------|--------|--------|----------|
    | input   | token and position embeddings          | 1       | 1      |        | 1        |
    | vector  | gains, biases, sinks, biases of scores | 1       | 1      |        | 1        |
    | hidden  | a matrix within a block                | m^-1/2  | 1/m    | m^-1/2 | 1        |
    | latent  | one that reads a latent of heads       | h^-1/2  | 1/h    | h^-1/2 | 1        |
    | thin    | one with a row for each head           | m^-1/2  | 1/m    |        | 1        |
    | factor  | vectors multiplied with each other     | h^-1/2  | h^-1/2 |        | 1        |
    | readout | the output head                        | 1       | 1      |        | 1/m      |
    | scores  | q·k, times D to the power of e         |         |        |        | h^-(1+e) |

    The spectral reading (Yang 2023, 2310.17813): a step of Adam is a matrix of low rank with entries of one
    size, whose norm grows with the width; one of Muon under `match_rms_adamw` has a norm that grows with the
    root of it. A tied head is an `input`, read with the readout's factor. The last row is `scores`.
    """

    def matrix(ratio: float, muon: bool = True) -> Row:
        return Row(ratio**-0.5, 1 / ratio, ratio**-0.5 if muon else None)

    return {
        "input": Row(),
        "vector": Row(),
        "hidden": matrix(width),
        "latent": matrix(head),
        "thin": matrix(width, muon=False),
        "factor": Row(head**-0.5, head**-0.5),
        "readout": Row(forward=1 / width),
    }


def scores(head: float, exponent: float) -> float:
    """What the scale D^exponent of scores is multiplied with: q·k / D beyond the base (§3.1 of the paper),
    since queries and keys that have learned anything are not independent.
    """
    return head ** -(1 + exponent)


@final
@dataclass(frozen=True)
class Mup:
    """Counted from a model of width `base_dim`, whose heads have queries and keys of `base_head_dim`; None is
    as many heads as here. A latent's rank is taken to grow as heads do, an FFN as the model does.

    ValueError for a base that is none, and for parameters that the table has no row for.
    """

    base_dim: int
    base_head_dim: int | None = None

    def __post_init__(self) -> None:
        for name, value in (("base_dim", self.base_dim), ("base_head_dim", self.base_head_dim)):
            if value is not None and value < 1:
                raise ValueError(f"model.parametrization.{name} must be at least 1, got {value}")

    def width(self, dim: int) -> float:
        """How many times as wide as the base."""
        return dim / self.base_dim

    def head(self, dim: int, mixer: object) -> float:
        """How many times as wide a head's queries and keys are; where a layer says none, the layer itself."""
        own = getattr(getattr(mixer, "heads", None), "score_dim", None)
        return self.width(dim) if own is None or self.base_head_dim is None else own / self.base_head_dim

    def readout(self, dim: int, vocab_size: int) -> nn.Linear:
        """The output head."""
        return Readout(dim, vocab_size, table(self.width(dim))["readout"].forward)

    def rescale(self, mixer: object, dim: int) -> None:
        """Scores by the table; a mixer other than attention has none that are known."""
        if isinstance(mixer, Attention):
            mixer.scale *= scores(self.head(dim, mixer), mixer.scale_exponent)


@final
class Readout(nn.Linear):
    """An output head whose logits are multiplied with a number."""

    def __init__(self, dim: int, vocab_size: int, factor: float) -> None:
        super().__init__(dim, vocab_size, bias=False)
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        """[..., M] to [..., vocabulary]: x is multiplied, the smaller of the two."""
        return super().forward(x * self.factor)


def rows(model: Any) -> dict[str, Row]:
    """Parameter name to its row; of a model without a parametrization they are those of the base width.

    ValueError where a model that has one holds parameters of no known kind.
    """
    mup: Mup | None = getattr(model, "parametrization", None)
    found = {}
    plain = table()
    for name, kind in kinds(model):
        if mup is None:
            found[name] = plain.get(kind, Row())
            continue
        if kind not in plain:
            raise ValueError(
                f"parametrization=mup has no row for {name}: declare what it is (`kinds` of its module), or "
                "set parametrization=standard"
            )
        dim = model.embedding.embedding_dim
        block = name.split(".")[1] if name.startswith("blocks.") else None
        head = 1.0 if block is None else mup.head(dim, model.blocks[int(block)].mixer)
        found[name] = table(mup.width(dim), head)[kind]
    return found


def kinds(model: nn.Module) -> Iterator[tuple[str, str | None]]:
    """Parameter and kind: what a module says of it, or what its class shows; None where neither does."""
    told = {
        f"{place}.{name}".lstrip("."): kind
        for place, module in model.named_modules()
        for name, kind in getattr(module, "kinds", {}).items()
    }
    for place, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            whole = f"{place}.{name}".lstrip(".")
            yield whole, told.get(whole) or _seen(place, module, parameter)


def _seen(place: str, module: nn.Module, parameter: Tensor) -> str | None:
    if parameter.ndim < 2:
        return "vector"
    if isinstance(module, nn.Embedding):
        return "input"
    if isinstance(module, nn.Linear | nn.RNNBase):
        return "readout" if place == "head" else "hidden"
    return None
