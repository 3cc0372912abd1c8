"""Width scaling of initial values, learning rates and multipliers, all from one table.

A learning rate transfers between widths only if every activation, and its change per step, keeps its size as
the width grows (Yang 2022, arXiv 2203.03466). The table follows Adam's column of its table 8. There the
readout starts as at the base width and is divided in the forward pass, so that it can be tied. All factors
are relative to a base width, at which `mup` equals `standard` bit for bit.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, final

from torch import Tensor, nn

from attnlab.attention.layer import Attention


class ScalingRow(NamedTuple):
    """Factors of a tensor relative to the base width.

    They apply to its initial scale, the learning rates of Adam and Muon, and its use in the forward pass.
    `muon_lr` None: AdamW trains the tensor.
    """

    init: float = 1.0
    adam_lr: float = 1.0
    muon_lr: float | None = None
    forward: float = 1.0


def build_scaling_table(width: float = 1.0, head: float = 1.0) -> dict[str | None, ScalingRow]:
    """Map each kind of tensor to its factors.

    The model is m = `width` times as wide as its base, and a head's queries and keys h = `head` times:

    | kind    | tensors                                | initial | Adam   | Muon   | forward  |
    |---------|----------------------------------------|---------|--------|--------|----------|
    | input   | token and position embeddings          | 1       | 1      |        | 1        |
    | vector  | gains, biases, sinks, biases of scores | 1       | 1      |        | 1        |
    | hidden  | a matrix within a block                | m^-1/2  | 1/m    | m^-1/2 | 1        |
    | latent  | a matrix that reads a latent of heads  | h^-1/2  | 1/h    | h^-1/2 | 1        |
    | thin    | a matrix with one row per head         | m^-1/2  | 1/m    |        | 1        |
    | factor  | vectors multiplied with each other     | h^-1/2  | h^-1/2 |        | 1        |
    | readout | the output head                        | 1       | 1      |        | 1/m      |
    | scores  | q·k, times D to the power of e         |         |        |        | h^-(1+e) |

    Spectral interpretation (Yang 2023, arXiv 2310.17813): a step of Adam is a low-rank matrix with entries of
    equal size, whose norm grows with the width. The norm of a Muon step under `match_rms_adamw` grows with
    the square root of the width. A tied head is an `input`, read with the readout's factor. The last row is
    `compute_score_factor`.
    """

    def make_matrix_row(ratio: float, muon: bool = True) -> ScalingRow:
        return ScalingRow(ratio**-0.5, 1 / ratio, ratio**-0.5 if muon else None)

    return {
        "input": ScalingRow(),
        "vector": ScalingRow(),
        "hidden": make_matrix_row(width),
        "latent": make_matrix_row(head),
        "thin": make_matrix_row(width, muon=False),
        "factor": ScalingRow(head**-0.5, head**-0.5),
        "readout": ScalingRow(forward=1 / width),
    }


def compute_score_factor(head: float, exponent: float) -> float:
    """Compute the factor of the score scale D^exponent, so that scores are q·k / D beyond the base width.

    Trained queries and keys are not independent (Yang 2022, §3.1).
    """
    return head ** -(1 + exponent)


@final
@dataclass(frozen=True)
class Mup:
    """Maximal update parametrization relative to a model of hidden size `base_dim`.

    `base_head_dim` is the size of the base model's queries and keys; None: the base has as many heads. A
    latent's rank is assumed to grow like the head size, an FFN like the model.

    Raises:
        ValueError: A base size below 1. Parameters without a row raise in `map_scaling_rows`.
    """

    base_dim: int
    base_head_dim: int | None = None

    def __post_init__(self) -> None:
        for name, value in (("base_dim", self.base_dim), ("base_head_dim", self.base_head_dim)):
            if value is not None and value < 1:
                raise ValueError(f"model.parametrization.{name} must be at least 1, got {value}")

    def compute_width_ratio(self, dim: int) -> float:
        """Return dim / base_dim."""
        return dim / self.base_dim

    def compute_head_ratio(self, dim: int, mixer: object) -> float:
        """Return the width ratio of a head's queries and keys, or the model's without a `score_dim`."""
        score_dim = getattr(getattr(mixer, "heads", None), "score_dim", None)
        return (
            self.compute_width_ratio(dim)
            if score_dim is None or self.base_head_dim is None
            else score_dim / self.base_head_dim
        )

    def make_readout(self, dim: int, vocab_size: int) -> nn.Linear:
        """Make the output head with the readout factor."""
        return Readout(dim, vocab_size, build_scaling_table(self.compute_width_ratio(dim))["readout"].forward)

    def rescale_scores(self, mixer: object, dim: int) -> None:
        """Multiply the score scale of an attention mixer by its factor; other mixers have no known scores."""
        if isinstance(mixer, Attention):
            mixer.scale *= compute_score_factor(self.compute_head_ratio(dim, mixer), mixer.scale_exponent)


@final
class Readout(nn.Linear):
    """Output head whose logits are multiplied by a constant."""

    def __init__(self, dim: int, vocab_size: int, factor: float) -> None:
        super().__init__(dim, vocab_size, bias=False)
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        """[..., M] -> [..., vocabulary]; multiplies x, which is smaller than the logits."""
        return super().forward(x * self.factor)


def map_scaling_rows(model: Any) -> dict[str, ScalingRow]:
    """Map each parameter name to its factors; without a parametrization, those of the base width.

    Raises:
        ValueError: The model has a parametrization and a parameter of unknown kind.
    """
    mup: Mup | None = getattr(model, "parametrization", None)
    rows = {}
    base_rows = build_scaling_table()
    for name, kind in iterate_parameter_kinds(model):
        if mup is None:
            rows[name] = base_rows.get(kind, ScalingRow())
            continue
        if kind not in base_rows:
            raise ValueError(
                f"parametrization=mup has no rule for {name}: declare its kind (`kinds` of its module), or "
                "set parametrization=standard"
            )
        dim = model.embedding.embedding_dim
        layer = name.split(".")[1] if name.startswith("blocks.") else None
        head = 1.0 if layer is None else mup.compute_head_ratio(dim, model.blocks[int(layer)].mixer)
        rows[name] = build_scaling_table(mup.compute_width_ratio(dim), head)[kind]
    return rows


def iterate_parameter_kinds(model: nn.Module) -> Iterator[tuple[str, str | None]]:
    """Yield each parameter name with its kind: declared in `kinds`, inferred from the class, or None."""
    declared_kinds = {
        f"{module_name}.{name}".lstrip("."): kind
        for module_name, module in model.named_modules()
        for name, kind in getattr(module, "kinds", {}).items()
    }
    for module_name, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            full_name = f"{module_name}.{name}".lstrip(".")
            yield full_name, declared_kinds.get(full_name) or _infer_kind(module_name, module, parameter)


def _infer_kind(module_name: str, module: nn.Module, parameter: Tensor) -> str | None:
    if parameter.ndim < 2:
        return "vector"
    if isinstance(module, nn.Embedding):
        return "input"
    if isinstance(module, nn.Linear | nn.RNNBase):
        return "readout" if module_name == "head" else "hidden"
    return None
