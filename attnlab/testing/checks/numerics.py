"""Checks of precision, memory layout, reproducibility and state."""

import warnings

import torch
from torch import Tensor, nn

from attnlab.attention.contracts import Unsupported
from attnlab.testing.checks.deviation import CheckFailed, CheckSkipped, Deviation, Measured
from attnlab.testing.checks.random_state import read_random_states, use_seed
from attnlab.testing.checks.subject import Adapter, Subject
from attnlab.testing.checks.visibility import LARGE_INPUT

FLOAT32_RATIO = 1000.0  # constants, as angles of RoPE, may be rounded to float32 in any precision
SMALLEST_CHANGE = 1e-300
DECODED_TOKENS = 40
SHARP_INPUT = 3.0  # factor of inputs: among nearly equal weights, errors of positions have no effect


@torch.no_grad()
def check_dtypes(subject: Subject, batch: int, length: int) -> Measured:
    """After `.to(dtype)`, outputs have that dtype, and those in float32, float16 and bfloat16, decoded too,
    and under autocast differ from float64 by rounding only.
    """
    ratios, notes = [], []
    exact_dtype = torch.float32 if subject.no_float64 else torch.float64
    if subject.no_float64:
        if not is_missing_kernel(subject.no_float64):
            raise CheckFailed(f"float64: {subject.no_float64}")
        notes.append("no float64 kernel")
    for dtype, is_autocast in (
        (torch.float32, False),
        (torch.float16, False),
        (torch.bfloat16, False),
        (torch.bfloat16, True),
    ):
        name = ("autocast to " if is_autocast else "") + str(dtype).removeprefix("torch.")
        weights_dtype = torch.float32 if is_autocast else dtype
        exact = subject.build(exact_dtype)
        adapter = exact.copy(weights_dtype)
        x = subject.draw_input(adapter, batch, length, dtype=weights_dtype)
        x *= LARGE_INPUT if dtype == torch.float32 else SHARP_INPUT
        try:
            with torch.autocast(x.device.type, dtype, enabled=is_autocast), warnings.catch_warnings():
                # of nn.RMSNorm with a gain; about speed only
                warnings.filterwarnings("ignore", "Mismatch dtype between input and weight", UserWarning)
                y = adapter.forward(x)
        except Exception as error:
            if not is_missing_kernel(f"{type(error).__name__}: {error}"):
                raise CheckFailed(f"{name}: {describe_error(error)}") from error
            notes.append(f"no {name} kernel")
            continue
        if y.dtype != dtype and not is_autocast:
            raise CheckFailed(f"input {name}, output {str(y.dtype).removeprefix('torch.')}")
        if dtype == exact_dtype:
            continue
        if isinstance(exact.module, nn.Module):  # its buffers stay exact
            for parameter, rounded in zip(
                exact.module.parameters(), adapter.module.parameters(), strict=True
            ):
                parameter.copy_(rounded)
        ratio = FLOAT32_RATIO if dtype == torch.float32 else subject.rounding_ratio
        rounding = Rounding(exact, x.to(exact_dtype), torch.finfo(dtype).eps)
        ratios.append(rounding.compare(y, ratio, name))
        notes.append(f"{name} {ratios[-1]:.1f}")
        if adapter.no_cache is None and adapter.is_causal and not is_autocast:
            x = x[:, : adapter.max_cached]
            steps = min(DECODED_TOKENS, x.shape[1] - 1)
            sizes = (x.shape[1] - steps, *[1] * steps)
            try:
                decoded, expected = adapter.decode(x, sizes), exact.decode(x.to(exact_dtype), sizes)
            except Unsupported:
                continue
            ratios.append(rounding.compare(decoded, ratio, f"{name}, decoded", expected))
    if not ratios:
        raise CheckSkipped(", ".join(notes))
    return Measured(max(ratios), f"errors relative to those of rounded weights: {', '.join(notes)}")


class Rounding:
    """The change of exact outputs by one rounding of each weight and input, to which errors are compared.

    An ill-conditioned module thus has a wide tolerance, and no second implementation is needed.
    """

    def __init__(self, exact: Adapter, x: Tensor, unit: float) -> None:
        self.expected = exact.forward(x)
        perturbed = exact.copy()
        for number, parameter in enumerate(perturbed.get_parameters().values()):
            parameter.copy_(_perturb(parameter, unit, number))
        self.change = perturbed.forward(_perturb(x, unit, -1)) - self.expected

    def compare(self, actual: Tensor, max_ratio: float, label: str, expected: Tensor | None = None) -> float:
        """Compare the first outputs with the exact ones by thirds of the sequence; return the largest ratio.

        Each third is compared with the effect of rounding on its own tokens, since tokens with large scores
        amplify any error. The median ignores single ill-conditioned tokens, as the first of a difference.

        Raises:
            CheckFailed: an output is not finite, or an error is larger than `max_ratio` times that effect.
        """
        if not actual.isfinite().all():
            raise CheckFailed(f"{label}: NaN or infinity")
        errors = _compute_token_rms(
            actual.to(self.expected) - (self.expected if expected is None else expected)
        )
        changes = _compute_token_rms(self.change[:, : len(errors)])
        ratios = []
        for part in torch.arange(len(errors)).tensor_split(min(3, len(errors))):
            error, change = errors[part].median().item(), changes[part].median().item()
            ratios.append(error / max(change, SMALLEST_CHANGE))
            if ratios[-1] > max_ratio and error:
                raise CheckFailed(
                    f"{label}: off by {error:.2g} from token {int(part[0])} on, {ratios[-1]:.1f} times the "
                    "change that rounding of weights and inputs causes: compute in float32 at least, and "
                    "keep constants that `.to(dtype)` would round"
                )
        return max(ratios)


def _perturb(tensor: Tensor, unit: float, seed: int) -> Tensor:
    noise = torch.rand(tensor.shape, generator=torch.Generator().manual_seed(seed + 5), dtype=torch.float64)
    return tensor * (1 + unit * (noise.to(tensor) - 0.5))


def _compute_token_rms(y_BTM: Tensor) -> Tensor:
    return y_BTM.square().mean((0, 2)).sqrt()


@torch.no_grad()
def check_strides(subject: Subject, batch: int, length: int) -> Measured:
    """A non-contiguous input gives the outputs of its contiguous copy."""
    adapter = subject.build()
    x = subject.draw_input(adapter, batch, length)
    expected = adapter.forward(x)
    layouts = {
        "x stored as [T, B, D]": x.transpose(0, 1).contiguous().transpose(0, 1),
        "every second channel of a wider tensor": x.repeat_interleave(2, dim=-1)[..., ::2],
        "the end of a longer sequence": torch.cat([x, x], 1)[:, length:],
    }
    deviation = Deviation(subject.tolerance)
    for case, view in layouts.items():
        try:
            actual = adapter.forward(view)
        except RuntimeError as error:
            raise CheckFailed(f"{case}: {describe_error(error)}") from error
        deviation.compare(actual, expected, case)
    return deviation.report()


@torch.no_grad()
def check_determinism(subject: Subject, batch: int, length: int) -> Measured:
    """In evaluation, equal seeds give equal weights and bitwise equal outputs, and so do weights that are
    loaded into an instance of another seed, which has others.
    """
    adapter, again, other = subject.build(), subject.build(), subject.build(seed=1)
    x = subject.draw_input(adapter, batch, length)
    exact = Deviation(0.0)
    with use_seed(1):
        expected = adapter.forward(x)
    if isinstance(adapter.module, nn.Module):
        others = dict(again.module.named_parameters())
        for name, parameter in adapter.module.named_parameters():
            if not torch.equal(parameter, others[name]):
                raise CheckFailed(f"parameter {name} differs between two instances of one seed")
        if others and all(map(torch.equal, others.values(), other.module.parameters())):
            raise CheckFailed("another seed gives the same weights")
        other.module.load_state_dict(adapter.module.state_dict())
        case = "weights loaded into an instance of another seed"
        Deviation(subject.tolerance).compare(other.forward(x), expected, case)
    for seed, instance, case in ((2, adapter, "another random state"), (1, again, "a second instance")):
        with use_seed(seed):
            exact.compare(instance.forward(x), expected, case)
    return Measured(0.0, "bitwise equal outputs")


@torch.no_grad()
def check_random_state(subject: Subject, batch: int, length: int) -> Measured:
    """Evaluation leaves the random states of torch, Python and NumPy as they are; neither construction nor
    training resets them.
    """
    adapter = subject.build()
    x = subject.draw_input(adapter, batch, length)
    before = read_random_states()
    adapter.forward(x)
    for library, state in read_random_states().items():
        if library in before and before[library] != state:
            raise CheckFailed(f"a call in evaluation changes the random state of {library}")
    training = adapter.copy(is_training=True)
    calls = {"construction": subject.construct, "a call in training": lambda: training.forward(x)}
    for case, call in calls.items():
        states = []
        for seed in (1, 2):
            with use_seed(seed):
                call()
                states.append(read_random_states())
        for library, state in states[0].items():
            if state == states[1][library]:
                raise CheckFailed(f"{case} resets the random state of {library}")
    return Measured(0.0, "random states stay")


@torch.no_grad()
def check_state(subject: Subject, batch: int, length: int) -> Measured:
    """A call leaves its input and the module as they are, and changes no output of later calls, of other
    caches or of other instances.
    """
    adapter = subject.build()
    x = subject.draw_input(adapter, batch, length)
    other = subject.draw_input(adapter, batch + 1, length + 5, seed=1)
    original = x.clone()
    before = {name: tensor.clone() for name, tensor in adapter.list_state().items()}
    exact = Deviation(1e3 * torch.finfo(subject.dtype).eps)  # a cached table may round otherwise
    expected = adapter.forward(x)
    exact.compare(x, original, "the call changes its input")
    exact.compare(adapter.forward(x), expected, "the same call again")
    adapter.forward(other[:batch, :length].contiguous())
    adapter.forward(other)
    exact.compare(adapter.forward(x), expected, "the same call after one with another input")
    fresh = subject.build()
    fresh.forward(x[:1, :1])
    exact.compare(fresh.forward(x), expected, "the same call after a shorter one")
    if adapter.no_cache is None and adapter.is_causal:
        _decode_in_turn(subject, adapter, x, other)
        exact.compare(adapter.forward(x), expected, "the same call after decoding with a cache")
    for name, tensor in adapter.list_state().items():
        if name not in before:
            raise CheckFailed(f"a call in evaluation adds {name}")
        if not torch.equal(tensor, before[name]):
            raise CheckFailed(f"a call in evaluation changes {name}")
    if adapter.is_causal and not adapter.changes_with_length:
        _require_separate_memos(subject, x, other[:batch], expected)
    return exact.report()


def _require_separate_memos(subject: Subject, x: Tensor, other: Tensor, expected: Tensor) -> None:
    """Require that the beginning of a longer call stays the same after a call of another instance.

    A memo that instances share holds the other instance's tensors at this length. A module whose beginning
    depends on the rest fails causality, not this.
    """
    deviation = Deviation(subject.tolerance)
    length = x.shape[1]
    for extra in (2, length + 1):
        longer = torch.cat([x, other[:, :extra]], 1)
        if extra > 2:
            subject.build(seed=1).forward(longer)
        adapter = subject.build()
        stays = ~adapter.compute_reachability(length + extra)[:length, length:].any(-1)
        actual = adapter.forward(longer)[:, :length]
        try:
            case = "the beginning of a longer call, after one of another instance"
            deviation.compare(actual[:, stays], expected[:, stays], case, whole=expected)
        except CheckFailed:
            if extra == 2:
                return
            raise


def _decode_in_turn(subject: Subject, adapter: Adapter, x: Tensor, other: Tensor) -> None:
    """Decode two batches in turn, each with a cache of its own, and compare with decoding one alone."""
    length = min(x.shape[1], adapter.max_cached or x.shape[1])
    try:
        alone = adapter.decode(x, [1] * length)
    except Unsupported:
        return
    states = [adapter.start(), adapter.start()]
    for t in range(length):
        outputs = []
        for n, tokens in enumerate((x, other)):
            y, states[n] = adapter.step(tokens[:, t : t + 1].contiguous(), states[n])
            outputs.append(y)
        case = "decoded in turn with another batch"
        Deviation(subject.tolerance).compare(outputs[0], alone[:, t : t + 1], case, t)


def is_missing_kernel(message: str) -> bool:
    """Whether an error says that a dtype is not supported, in contrast to a mixture of dtypes."""
    phrases = ("not implemented for", "support", "notimplemented", "could not create a primitive")
    return any(phrase in message.lower() for phrase in phrases)


def describe_error(error: BaseException) -> str:
    """Describe an error in one line of at most 300 characters."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__
