"""Checks of training: its outputs, gradients and parameters."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from attnlab.testing.checks.deviation import SMALLEST_SCALE, CheckFailed, CheckSkipped, Deviation, Measured
from attnlab.testing.checks.random_state import disable_dropout, is_random, use_seed
from attnlab.testing.checks.subject import Adapter, Subject
from attnlab.testing.checks.visibility import project

GRADIENT_STEPS = (3e-3, 1e-3, 1e-4, 1e-6)  # the first that agrees counts: rounding and kinks differ by module
GRADIENT_FLOOR = 0.1  # of the steepest slope: smaller ones drown in the rounding of a float32 softmax
SHORT_LENGTH = 32  # tokens, up to which each parameter has a direction of its own
DROPOUT_PASSES = 48
DROPOUT_TOLERANCE = 0.05  # of the mean output; for dropout before a softmax, half the probability


@torch.no_grad()
def check_training_mode(subject: Subject, batch: int, length: int) -> Measured:
    """Without dropout, training mode computes the outputs of evaluation mode, on every call; with dropout,
    on average.
    """
    adapter = subject.build()
    if not isinstance(adapter.module, nn.Module):
        raise CheckSkipped("a function has no training mode")
    x = subject.draw_input(adapter, batch, length)
    expected = adapter.forward(x)
    notes = []
    if is_random(adapter, x):
        notes.append(_measure_dropout(adapter, x, expected))
    deviation = Deviation(subject.tolerance)
    with disable_dropout():
        if not notes or not is_random(adapter, x):
            training = adapter.copy(is_training=True)
            with torch.enable_grad():
                for ordinal in ("first", "second"):
                    actual = training.forward(x.clone().requires_grad_()).detach()
                    deviation.compare(actual, expected, f"the {ordinal} pass in training mode")
            notes.append(deviation.report().detail)
    return Measured(deviation.largest, ", ".join(notes))


def _measure_dropout(adapter: Adapter, x: Tensor, expected: Tensor) -> str:
    """Describe the mean of random outputs in training."""
    training = adapter.copy(is_training=True)
    with use_seed(1):
        outputs = torch.stack([training.forward(x) for _ in range(DROPOUT_PASSES)])
    ratio = measure_mean_output(
        outputs, expected, max(DROPOUT_TOLERANCE, _find_probability(adapter.module) / 2)
    )
    return f"with dropout {ratio:.3f} of the outputs of evaluation on average"


def measure_mean_output(outputs: Tensor, expected: Tensor, tolerance: float) -> float:
    """Measure the mean of random outputs, relative to the expected ones."""
    ratios = (outputs * expected).double().flatten(1).sum(1) / expected.double().square().sum()
    ratio = ratios.mean().item()
    error = (ratios.std() / len(outputs) ** 0.5).item()
    if not abs(ratio - 1) <= max(tolerance, 5 * error):
        raise CheckFailed(
            f"outputs with dropout are on average {ratio:.3f} of those without: divide by the probability to "
            "keep"
        )
    return ratio


def _find_probability(module: nn.Module) -> float:
    """The largest dropout probability among the attributes of the module and its parts."""
    values = [0.0]
    for part in module.modules():
        is_dropout = isinstance(part, nn.Dropout)
        values += [
            value
            for name, value in vars(part).items()
            if isinstance(value, float) and (is_dropout or "drop" in name) and value < 1
        ]
    return max(values)


def check_gradients(subject: Subject, batch: int, length: int) -> Measured:
    """Gradients of the input and of every parameter agree with finite differences along a direction."""
    if subject.no_float64:
        raise CheckSkipped(f"no float64 kernel ({subject.no_float64})")
    adapter = subject.build()
    x = subject.draw_input(adapter, batch, length).requires_grad_()
    tensors = {"x": x, **adapter.get_parameters()}
    y = project(adapter.forward(x))
    if not y.requires_grad:
        raise CheckFailed("the output has no gradient")
    y.backward()
    directions = {
        name: torch.randn(
            tensor.shape, generator=torch.Generator().manual_seed(number), dtype=torch.float64
        ).to(tensor)
        * (float(tensor.detach().square().mean().sqrt()) or 1.0)
        for number, (name, tensor) in enumerate(tensors.items())
    }
    groups = {name: [name] for name in tensors} if length <= SHORT_LENGTH else {"all tensors": [*tensors]}
    slopes = {  # by backward
        label: sum(
            (grad * directions[name]).sum().item()
            for name in group
            if (grad := tensors[name].grad) is not None
        )
        for label, group in groups.items()
    }
    floor = max(GRADIENT_FLOOR * max(map(abs, slopes.values())), SMALLEST_SCALE)
    deviation = Deviation(subject.gradient_tolerance)
    for label, group in groups.items():
        slope, errors = slopes[label], {}
        for step in GRADIENT_STEPS:
            measured = _measure_slope(adapter, x, [(tensors[name], directions[name]) for name in group], step)
            errors[abs(slope - measured) / max(abs(slope), abs(measured), floor)] = measured
            if min(errors) <= subject.gradient_tolerance:
                break
        deviation.add(
            min(errors),
            f"gradient of {label}: {slope:.6g} by backward, {errors[min(errors)]:.6g} by finite differences",
        )
    return deviation.report()


@torch.no_grad()
def _measure_slope(adapter: Adapter, x: Tensor, moved: list[tuple[Tensor, Tensor]], step: float) -> float:
    """Measure a derivative by central differences of order four; the tensors keep their values."""
    values = []
    originals = [tensor.clone() for tensor, _ in moved]
    for factor in (1, -1, 2, -2):
        for (tensor, direction), original in zip(moved, originals, strict=True):
            tensor.copy_(original + factor * step * direction)
        values.append(project(adapter.forward(x)).item())
    for (tensor, _), original in zip(moved, originals, strict=True):
        tensor.copy_(original)
    return (8 * (values[0] - values[1]) - (values[2] - values[3])) / (12 * step)


def check_parameters(subject: Subject, batch: int, length: int) -> Measured:
    """Every parameter is one of the module's own, gets a gradient, and belongs to one instance."""
    adapter, other = subject.build(), subject.build()
    if not isinstance(adapter.module, nn.Module):
        raise CheckSkipped("a function has no parameters")
    registered = dict(adapter.module.named_parameters())
    others = {each.untyped_storage().data_ptr() for each in other.module.parameters() if each.numel()}
    for name, parameter in registered.items():
        if parameter.untyped_storage().data_ptr() in others:
            raise CheckFailed(f"two instances share parameter {name}")
    x = subject.draw_input(adapter, batch, length).requires_grad_()
    y = project(adapter.forward(x))
    if not y.requires_grad:
        raise CheckSkipped("the output has no gradient")
    owned = {id(x), *map(id, registered.values())}
    for leaf in _iter_leaves(y):
        if id(leaf) not in owned:
            raise CheckFailed(
                f"outputs depend on a parameter of shape {[*leaf.shape]} that the module does not contain: "
                "register it in the instance"
            )
    y.backward()
    trained = adapter.get_parameters()
    for name, parameter in trained.items():
        if (
            parameter.numel()
            and not adapter.has_other_losses
            and (parameter.grad is None or not parameter.grad.any())
        ):
            raise CheckFailed(f"{name} gets no gradient from {length} tokens")
    return Measured(len(trained), f"{len(trained)} parameters get a gradient")


def _iter_leaves(y: Tensor) -> Iterator[Tensor]:
    """Yield the tensors at which the graph of y ends and which accumulate a gradient."""
    pending, seen = [y.grad_fn], set()
    while pending:
        node = pending.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if (leaf := getattr(node, "variable", None)) is not None:
            yield leaf
        pending += [following for following, _ in node.next_functions]
