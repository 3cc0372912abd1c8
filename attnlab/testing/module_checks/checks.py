"""Checks of one attention module: one function each, whose docstring is the statement that it tests.

A check takes the subject and the batch and length of its input. It returns the number that it measured with
its unit, raises `CheckFailed`, or raises `CheckSkipped` if it cannot apply.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn

from attnlab.testing.module_checks.adapters import Adapter
from attnlab.testing.module_checks.deviation import SMALLEST_SCALE, CheckFailed, CheckSkipped, Deviation
from attnlab.testing.module_checks.subject import Subject, copy_in_dtype, describe_error

TOLERANCES = {torch.float64: 1e-5, torch.float32: 1e-4}  # many modules compute their softmax in float32
ZERO_GRADIENT = 1e-9  # relative to the largest gradient
DTYPE_TOLERANCES = {
    torch.float32: 1e-4,
    torch.float16: 0.01,  # about ten roundings to eleven bits
    torch.bfloat16: 0.05,  # about six roundings to eight bits
}
GRADIENT_TOLERANCE = 5e-3  # a wrong gradient differs by more; a kink, as of a relu, within a step by less
GRADIENT_STEPS = (1e-2, 1e-3, 1e-4)  # the best one counts: rounding and curvature differ by module
GRADIENT_FLOOR = 0.1  # of the steepest slope: smaller ones drown in the rounding of a float32 softmax
MAX_GRADIENT_POSITIONS = 12
N_SPLITS = 4  # random ones, besides single tokens and a last token alone


class Measured(NamedTuple):
    """The number that a passed check measured, and its description."""

    value: float
    detail: str


Check = Callable[[Subject, int, int], Measured]  # of subject, batch and length


def check_causality(subject: Subject, batch: int, length: int) -> Measured:
    """Output t does not depend on inputs after t: their gradient is zero, and their values are unused."""
    if not subject.is_causal:
        raise CheckSkipped("declared non-causal")
    adapter = subject.build()
    x = subject.draw_input(adapter, batch, length)
    other = subject.draw_input(adapter, batch, length, seed=1)
    try:
        y = adapter.forward(x.requires_grad_())
    except NotImplementedError:  # no backward kernel: outputs alone
        x = x.detach()
        y = adapter.forward(x)
    gradient, outputs = Deviation(ZERO_GRADIENT), _start_deviation(subject)
    positions = _choose_positions(length)
    if y.requires_grad:
        slopes = [torch.autograd.grad(_project(y[:, t]), x, retain_graph=True)[0].abs() for t in positions]
        largest = max((slope.max().item() for slope in slopes), default=0.0)
        for t, slope in zip(positions[:-1], slopes[:-1], strict=True):
            future = slope[:, t + 1 :].amax(dim=(0, 2))
            gradient.add(
                future.max().item() / max(largest, SMALLEST_SCALE),
                f"gradient of output {t} with respect to later inputs",
                f"input token {t + 1 + int(future.argmax())}",
            )
    y = y.detach()
    with torch.no_grad():
        for t in positions[:-1]:
            replaced = torch.cat([x[:, : t + 1], other[:, t + 1 :]], dim=1)
            actual = adapter.forward(replaced)[:, : t + 1]
            outputs.compare(actual, y[:, : t + 1], f"inputs after token {t} replaced", whole=y)
    value = max(gradient.largest, outputs.largest)
    return Measured(value, f"gradient {gradient.largest:.1e}, outputs {outputs.largest:.1e} relative")


def check_context(subject: Subject, batch: int, length: int) -> Measured:
    """Output 1 depends on input 0: its gradient is not zero."""
    if length < 2:
        raise CheckSkipped("one token has no context")
    adapter = subject.build()
    x = subject.draw_input(adapter, batch, length).requires_grad_()
    y = adapter.forward(x)
    if not y.requires_grad:
        raise CheckSkipped("the output has no gradient")
    slope = torch.autograd.grad(_project(y[:, 1]), x)[0].abs()
    share = slope[:, 0].max().item() / max(slope.max().item(), SMALLEST_SCALE)
    if share <= ZERO_GRADIENT:
        raise CheckFailed(
            f"output 1 does not depend on input 0: the module gets {adapter.layout}, and attention may run "
            "over another axis than T"
        )
    return Measured(share, f"gradient {share:.1e} relative to the largest")


@torch.no_grad()
def check_cache(subject: Subject, batch: int, length: int) -> Measured:
    """Outputs with a cache equal those without, in random splits of the sequence and token by token."""
    adapter = subject.build()
    if adapter.no_cache:
        raise CheckSkipped(adapter.no_cache)
    if not subject.is_causal:
        raise CheckSkipped("declared non-causal")
    x = subject.draw_input(adapter, batch, length)
    full = adapter.forward(x)
    deviation = _start_deviation(subject)
    for sizes in _list_splits(length):
        state, first = adapter.start(), 0
        for size in sizes:
            case = f"chunks {'+'.join(map(str, sizes))}"
            y, state = adapter.step(x[:, first : first + size].contiguous(), state)
            deviation.compare(y, full[:, first : first + size], case, first, whole=full)
            first += size
    return Measured(deviation.largest, str(deviation))


@torch.no_grad()
def check_left_padding(subject: Subject, batch: int, length: int) -> Measured:
    """A row with left padding has finite outputs, at tokens those of the row without it, with a cache too."""
    adapter = subject.build()
    if adapter.no_padding:
        raise CheckSkipped(adapter.no_padding)
    x = subject.draw_input(adapter, batch, length)
    pads = [min(1 + 2 * row, length - 1) for row in range(batch)][::-1]
    is_token = torch.stack([torch.arange(length, device=x.device) >= pad for pad in pads])
    try:
        outputs = {"": adapter.forward(x, is_token)}
    except Exception as error:
        if not adapter.guesses_padding:
            raise
        raise CheckSkipped(f"attention_mask [B, T] raises {describe_error(error)}") from error
    if adapter.pads_cache and adapter.no_cache is None and subject.is_causal:
        prompt = max(pads) + 1  # tokens, so that every row has one; the others follow one at a time
        y, state = adapter.step(x[:, :prompt].contiguous(), adapter.start(), is_token[:, :prompt])
        decoded = [y]
        for t in range(prompt, length):
            y, state = adapter.step(x[:, t : t + 1].contiguous(), state, is_token[:, : t + 1])
            decoded.append(y)
        outputs[", decoded with a cache"] = torch.cat(decoded, dim=1)
    whole = adapter.forward(x)
    deviation = _start_deviation(subject)
    for row, pad in enumerate(pads):
        alone = adapter.forward(x[row : row + 1, pad:].contiguous())
        for way, padded in outputs.items():
            case = f"{pad} of {length} tokens padding{way}"
            deviation.compare(padded[row : row + 1, pad:], alone, case, pad, whole=whole)
    _require_finite_padding(subject, batch, length, is_token)
    return Measured(deviation.largest, str(deviation))


@torch.no_grad()
def check_batch(subject: Subject, batch: int, length: int) -> Measured:
    """A row does not depend on the other rows, in evaluation and, without dropout, in training."""
    adapter = subject.build()
    x = subject.draw_input(adapter, batch, length)
    deviation = _start_deviation(subject)
    modes = [False] if _is_random_in_training(subject, adapter, x) else [False, True]
    for is_training in modes:
        y = _copy(subject, adapter, is_training).forward(x)
        mode = "training" if is_training else "evaluation"
        for row in range(batch if batch > 1 else 0):
            alone = _copy(subject, adapter, is_training).forward(x[row : row + 1])
            deviation.compare(y[row : row + 1], alone, f"row {row} of {batch} alone, in {mode}", whole=y)
    return Measured(deviation.largest, str(deviation))


@torch.no_grad()
def check_training_mode(subject: Subject, batch: int, length: int) -> Measured:
    """Without dropout, training mode computes the outputs of evaluation mode."""
    adapter = subject.build()
    if not isinstance(adapter.module, nn.Module):
        raise CheckSkipped("a function has no training mode")
    x = subject.draw_input(adapter, batch, length)
    if _is_random_in_training(subject, adapter, x):
        raise CheckSkipped("it draws random numbers in training mode: build it with dropout 0")
    expected = adapter.forward(x)
    with torch.enable_grad():
        actual = _copy(subject, adapter, True).forward(x.clone().requires_grad_()).detach()
    deviation = _start_deviation(subject)
    deviation.compare(actual, expected, "training mode")
    return Measured(deviation.largest, str(deviation))


@torch.no_grad()
def check_determinism(subject: Subject, batch: int, length: int) -> Measured:
    """In evaluation, equal seeds give equal weights and bitwise equal outputs; no random number is drawn."""
    adapter, again = subject.build(), subject.build()
    if isinstance(adapter.module, nn.Module) and isinstance(again.module, nn.Module):
        others = dict(again.module.named_parameters())
        for name, parameter in adapter.module.named_parameters():
            if not torch.equal(parameter, others[name]):
                raise CheckFailed(f"parameter {name} differs between two instances of one seed")
    x = subject.draw_input(adapter, batch, length)
    exact = Deviation(0.0)
    with _use_seed(1):
        expected = adapter.forward(x)
    for seed, instance, case in ((2, adapter, "another random state"), (1, again, "a second instance")):
        with _use_seed(seed):
            exact.compare(instance.forward(x), expected, case)
    return Measured(0.0, "bitwise equal outputs")


@torch.no_grad()
def check_dtypes(subject: Subject, batch: int, length: int) -> Measured:
    """float32, float16 and bfloat16 agree with float64 within their precision, and keep the input's dtype."""
    compared, notes = [], []
    for dtype, tolerance in DTYPE_TOLERANCES.items():
        reference_dtype = torch.float32 if subject.no_float64 else torch.float64
        name = str(dtype).removeprefix("torch.")
        adapter = subject.build(dtype)
        x = subject.draw_input(adapter, batch, length, dtype=dtype)
        try:
            y = adapter.forward(x)
        except Exception as error:
            if dtype == torch.float32 or not _is_missing_kernel(error):
                raise CheckFailed(f"{name}: {describe_error(error)}") from error
            notes.append(f"no {name} kernel")
            continue
        if y.dtype != dtype:
            raise CheckFailed(f"input {name}, output {str(y.dtype).removeprefix('torch.')}")
        if dtype == reference_dtype:
            continue
        exact = copy_in_dtype(subject, adapter, reference_dtype).forward(x.to(reference_dtype))
        deviation = Deviation(tolerance)
        deviation.compare(y, exact, name)
        compared.append(deviation.largest)
        notes.append(f"{name} {deviation.largest:.1e}")
    if subject.no_float64:
        if not _is_missing_kernel_message(subject.no_float64):
            raise CheckFailed(f"float64: {subject.no_float64}")
        notes.append("no float64 kernel")
    if not compared:
        raise CheckSkipped(", ".join(notes))
    return Measured(max(compared), f"relative differences: {', '.join(notes)}")


@torch.no_grad()
def check_strides(subject: Subject, batch: int, length: int) -> Measured:
    """A non-contiguous input gives the outputs of its contiguous copy."""
    adapter = subject.build()
    x = subject.draw_input(adapter, batch, length)
    expected = adapter.forward(x)
    layouts = {
        "x stored as [T, B, D]": x.transpose(0, 1).contiguous().transpose(0, 1),
        "every second channel of a wider tensor": x.repeat_interleave(2, dim=-1)[..., ::2],
    }
    deviation = _start_deviation(subject)
    for case, view in layouts.items():
        try:
            actual = adapter.forward(view)
        except RuntimeError as error:
            raise CheckFailed(f"{case}: {describe_error(error)}") from error
        deviation.compare(actual, expected, case)
    return Measured(deviation.largest, str(deviation))


def check_gradients(subject: Subject, batch: int, length: int) -> Measured:
    """Gradients of the input and of every parameter agree with finite differences along a direction."""
    if subject.no_float64:
        raise CheckSkipped(f"no float64 kernel ({subject.no_float64})")
    adapter = subject.build()
    x = subject.draw_input(adapter, batch, length).requires_grad_()
    tensors = {"x": x}
    if isinstance(adapter.module, nn.Module):
        tensors |= {
            name: parameter
            for name, parameter in adapter.module.named_parameters()
            if parameter.requires_grad and parameter.is_floating_point()
        }
    y = _project(adapter.forward(x))
    if not y.requires_grad:
        raise CheckFailed("the output has no gradient")
    gradients = torch.autograd.grad(y, list(tensors.values()), allow_unused=True)
    slopes: dict[str, tuple[float, float]] = {}  # by backward, and the nearest finite difference
    for number, ((name, tensor), gradient) in enumerate(zip(tensors.items(), gradients, strict=True)):
        generator = torch.Generator().manual_seed(number)
        direction = torch.randn(tensor.shape, generator=generator, dtype=torch.float64).to(tensor.device)
        direction /= direction.norm()
        slope = 0.0 if gradient is None else (gradient * direction).sum().item()
        measured = [_measure_slope(adapter, x, tensor, direction, step) for step in GRADIENT_STEPS]
        slopes[name] = slope, min(measured, key=lambda other: abs(other - slope))
    deviation = Deviation(GRADIENT_TOLERANCE)
    scale = max(max(abs(slope), abs(nearest)) for slope, nearest in slopes.values())
    for name, (slope, nearest) in slopes.items():
        size = max(abs(slope), abs(nearest), GRADIENT_FLOOR * scale, SMALLEST_SCALE)
        deviation.add(
            abs(slope - nearest) / size,
            f"gradient of {name}: {slope:.6g} by backward, {nearest:.6g} by finite differences",
        )
    return Measured(deviation.largest, str(deviation))


@torch.no_grad()
def check_state(subject: Subject, batch: int, length: int) -> Measured:
    """A call leaves its input as it is, and changes no output of later calls or caches."""
    adapter = subject.build()
    x = subject.draw_input(adapter, batch, length)
    other = subject.draw_input(adapter, batch + 1, length + 2, seed=1)
    original = x.clone()
    exact = Deviation(0.0)
    expected = adapter.forward(x)
    exact.compare(x, original, "the call changes its input")
    exact.compare(adapter.forward(x), expected, "the same call again")
    adapter.forward(other)
    exact.compare(adapter.forward(x), expected, "the same call after one with another input")
    if adapter.no_cache is None and subject.is_causal:
        _decode_in_turn(subject, adapter, x, other)
        exact.compare(adapter.forward(x), expected, "the same call after decoding with a cache")
    return Measured(0.0, "bitwise equal outputs")


CHECKS: tuple[Check, ...] = (
    check_causality,
    check_context,
    check_cache,
    check_left_padding,
    check_batch,
    check_training_mode,
    check_determinism,
    check_dtypes,
    check_strides,
    check_gradients,
    check_state,
)
LENGTHS: dict[Check, tuple[int, ...]] = {  # tokens; 23 for all others
    check_causality: (2, 7, 23, 65), check_context: (2,),
}  # fmt: skip


def _require_finite_padding(subject: Subject, batch: int, length: int, is_token: Tensor) -> None:
    """Raise CheckFailed if an output at padding is not finite, in float32: some masks overflow in float64."""
    adapter = subject.build(torch.float32)
    x = subject.draw_input(adapter, batch, length, dtype=torch.float32)
    is_finite = adapter.forward(x, is_token).isfinite().all(-1)
    if not is_finite.all():
        row, token = (~is_finite).nonzero()[0].tolist()
        raise CheckFailed(
            "NaN or infinity at padding in float32, which a second layer spreads to tokens: let padding see "
            "itself, or mask with the lowest finite number",
            f"row {row}, token {token}",
        )


def _start_deviation(subject: Subject) -> Deviation:
    return Deviation(TOLERANCES[subject.dtype])


def _project(y: Tensor) -> Tensor:
    """Reduce an output to one number with fixed random weights."""
    weights = torch.randn(y.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    return (y * weights.to(y)).sum()


def _choose_positions(count: int) -> list[int]:
    """Choose at most MAX_GRADIENT_POSITIONS of `count` positions, with the first and the last."""
    if count <= MAX_GRADIENT_POSITIONS:
        return list(range(count))
    step = (count - 1) / (MAX_GRADIENT_POSITIONS - 1)
    return [round(index * step) for index in range(MAX_GRADIENT_POSITIONS)]


def _list_splits(length: int) -> Iterator[list[int]]:
    """Yield sizes of chunks: single tokens, all but one token first, and random sizes."""
    yield [1] * length
    if length > 1:
        yield [length - 1, 1]
    generator = random.Random(length)
    for _ in range(N_SPLITS if length > 2 else 0):
        cuts = sorted(generator.sample(range(1, length), generator.randint(1, min(4, length - 1))))
        yield [end - start for start, end in zip([0, *cuts], [*cuts, length], strict=True)]


def _copy(subject: Subject, adapter: Adapter, is_training: bool) -> Adapter:
    """Copy an instance, in training or evaluation mode."""
    other = copy_in_dtype(subject, adapter, subject.dtype)
    if isinstance(other.module, nn.Module):
        other.module.train(is_training)
    return other


def _is_random_in_training(subject: Subject, adapter: Adapter, x: Tensor) -> bool:
    """Whether two random states give different outputs in training mode."""
    outputs = []
    for seed in (1, 2):
        other = _copy(subject, adapter, True)
        with _use_seed(seed):
            outputs.append(other.forward(x))
    return not torch.equal(*outputs)


@contextmanager
def _use_seed(seed: int) -> Iterator[None]:
    """Seed torch's random state, and restore it at the end."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def _is_missing_kernel(error: BaseException) -> bool:
    return isinstance(error, NotImplementedError) or _is_missing_kernel_message(str(error))


def _is_missing_kernel_message(message: str) -> bool:
    """Whether an error says that a dtype is not supported, in contrast to a mixture of dtypes."""
    return any(phrase in message.lower() for phrase in ("not implemented for", "support", "notimplemented"))


@torch.no_grad()
def _measure_slope(adapter: Adapter, x: Tensor, tensor: Tensor, direction: Tensor, step: float) -> float:
    """Measure a derivative by central differences of order four; the tensor keeps its values."""
    values = []
    original = tensor.clone()
    for factor in (1, -1, 2, -2):
        tensor.copy_(original + factor * step * direction)
        values.append(_project(adapter.forward(x)).item())
        tensor.copy_(original)
    return (8 * (values[0] - values[1]) - (values[2] - values[3])) / (12 * step)


def _decode_in_turn(subject: Subject, adapter: Adapter, x: Tensor, other: Tensor) -> None:
    """Decode two batches in turn, each with a cache of its own, and compare with decoding one alone."""
    length = x.shape[1]
    state, alone = adapter.start(), []
    for token in x.split(1, dim=1):
        y, state = adapter.step(token.contiguous(), state)
        alone.append(y.clone())
    state, other_state = adapter.start(), adapter.start()
    deviation = _start_deviation(subject)
    for t in range(length):
        y, state = adapter.step(x[:, t : t + 1].contiguous(), state)
        deviation.compare(y, alone[t], "decoded in turn with another batch", t)
        _, other_state = adapter.step(other[:, t : t + 1].contiguous(), other_state)
