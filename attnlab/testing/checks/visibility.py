"""Checks of visibility: which inputs an output depends on."""

import torch
from torch import Tensor

from attnlab.attention.contracts import Unsupported
from attnlab.testing.checks.deviation import SMALLEST_SCALE, CheckFailed, CheckSkipped, Deviation, Measured
from attnlab.testing.checks.subject import Adapter, Subject

N_POSITIONS = 12  # evenly spaced ones, besides those at the borders
ALL_POSITIONS = 24  # a sequence of so many tokens is checked at each
MAX_GRADIENT_LENGTH = 300  # tokens, beyond which only outputs are compared
LARGE_INPUT = 30.0  # factor of an input whose entries are outliers


def check_causality(subject: Subject, batch: int, length: int) -> Measured:
    """Output t does not depend on inputs after t: their gradient is zero, and their values and number are
    unused.
    """
    adapter = subject.build()
    if not adapter.is_causal:
        raise CheckSkipped("declared non-causal")
    x = subject.draw_input(adapter, batch, length)
    reachable = adapter.compute_reachability(length)
    positions = choose_positions(length, adapter)
    gradient = Deviation(subject.zero_gradient)
    try:
        slopes = compute_input_slopes(adapter, x, positions) if length <= MAX_GRADIENT_LENGTH else []
    except (NotImplementedError, Unsupported):  # no backward kernel: outputs alone
        slopes = []
    largest = max((slope.max().item() for slope in slopes), default=0.0)
    for t, slope in zip(positions, slopes, strict=False):
        hidden = slope.masked_fill(reachable[t], 0.0)
        gradient.add(
            hidden.max().item() / max(largest, SMALLEST_SCALE),
            f"gradient of output {t} with respect to inputs that it may not see",
            f"input token {int(hidden.argmax())}",
        )
    outputs = Deviation(subject.tolerance)
    with torch.no_grad():
        _replace_hidden_inputs(subject, adapter, x, reachable, outputs)
    return Measured(
        max(gradient.largest, outputs.largest),
        f"gradient {gradient.largest:.1e}, outputs {outputs.largest:.1e} relative",
    )


def _replace_hidden_inputs(
    subject: Subject, adapter: Adapter, x: Tensor, reachable: Tensor, outputs: Deviation
) -> None:
    """Compare outputs after the inputs from a token on are replaced, by outliers too, or left out."""
    batch, length, _ = x.shape
    other = subject.draw_input(adapter, batch, length, seed=1)
    y = adapter.forward(x)
    for n, t in enumerate(choose_positions(length, adapter)[:-1]):
        stays = ~reachable[:, t + 1 :].any(-1)
        stays[t + 1 :] = False
        size = LARGE_INPUT if n % 2 else 1.0
        replaced = adapter.forward(torch.cat([x[:, : t + 1], size * other[:, t + 1 :]], dim=1))
        outputs.compare(replaced[:, stays], y[:, stays], f"inputs after token {t} replaced", whole=y)
        if not adapter.changes_with_length and (length <= ALL_POSITIONS or t == length - 2):
            shorter = adapter.forward(x[:, : t + 1].contiguous())
            outputs.compare(
                shorter[:, stays[: t + 1]], y[:, stays], f"inputs after token {t} left out", whole=y
            )


def check_context(subject: Subject, batch: int, length: int) -> Measured:
    """Outputs depend on the other inputs that they see: the second one on the first."""
    if length < 2:
        raise CheckSkipped("one token has no context")
    adapter = subject.build()
    # an output may lack its own token, as where a token's own value is taken out
    visible = adapter.compute_visibility(length) & ~torch.eye(length, dtype=torch.bool)
    positions = [t for t in choose_positions(length, adapter) if visible[t].any()]
    if not positions:
        return Measured(0.0, "no input must be seen")
    slopes = compute_input_slopes(adapter, subject.draw_input(adapter, batch, length), positions)
    if not slopes:
        raise CheckSkipped("the output has no gradient")
    largest = max(slope.max().item() for slope in slopes)
    smallest = torch.inf
    for t, slope in zip(positions, slopes, strict=True):
        share = slope[visible[t]].min().item() / max(largest, SMALLEST_SCALE)
        if share <= subject.zero_gradient:
            token = int(slope.masked_fill(~visible[t], torch.inf).argmin())
            raise CheckFailed(
                f"output {t} does not depend on input {token}: the module gets {adapter.layout}, and "
                "attention may run over another axis than T"
            )
        smallest = min(smallest, share)
    return Measured(smallest, f"gradient {smallest:.1e} relative to the largest")


def compute_input_slopes(adapter: Adapter, x: Tensor, positions: list[int]) -> list[Tensor]:
    """Compute the largest absolute gradient of each output in `positions` by input token, [T] each.

    `backward` fills `grad`, since reentrant checkpoints allow no other way. Empty without a gradient.
    """
    x = x.detach().clone().requires_grad_()
    y = adapter.forward(x)
    if not y.requires_grad:
        return []
    slopes = []
    for t in positions:
        x.grad = None
        project(y[:, t]).backward(retain_graph=True)
        slopes.append(torch.zeros(x.shape[1]) if x.grad is None else x.grad.abs().amax((0, 2)).cpu())
    return slopes


def project(y: Tensor) -> Tensor:
    """Reduce an output to one number with fixed random weights."""
    weights = torch.randn(y.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    return (y * weights.to(y)).sum()


def choose_positions(length: int, adapter: Adapter) -> list[int]:
    """Choose tokens at the borders of blocks, and evenly spaced ones; in a short sequence all."""
    if length <= ALL_POSITIONS:
        return list(range(length))
    borders = {border + offset for border in adapter.borders for offset in (-1, 0)}
    spaced = torch.linspace(0, length - 1, N_POSITIONS).round().long().tolist()
    return sorted({t for t in borders if t < length - 1} | {*spaced, length - 2})
