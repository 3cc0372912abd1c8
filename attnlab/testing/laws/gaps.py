"""What shipped axis values cannot do together: declared here, and held to it. A gap that closes fails the
laws it names.

A kernel or a layer that fell back silently would close one.
"""

from typing import NamedTuple


class Gap(NamedTuple):
    """Where a variant makes all these choices, these laws are unsupported, for this reason."""

    choices: tuple[str, ...]
    laws: tuple[str, ...]
    reason: str


BUILT = ("builds",)
STEPS = (
    "decode_equals_full_pass",
    "model_decode_equals_full_pass",
    "left_padded_decode",
    "cache_reorder",
    "long_texts_decode",
)
GRADIENTS = (
    "masked_keys_get_no_gradient",
    "model_does_not_leak",
    "blind_rows_are_zero",
    "trains",
    "can_be_measured",
    "gradients_are_the_functions",
)

NO_SOFTMAX = ("off_by_one", "softpick", "sigmoid", "talking")
GAPS = (
    Gap(("kernel=sdpa", "score=softcap"), BUILT, "sdpa takes additive scores only"),
    Gap(("kernel=sdpa", "score=log_length"), BUILT, "sdpa takes additive scores only"),
    Gap(("kernel=sdpa", "epilogue=sinks"), BUILT, "sdpa gives no lse"),
    *(
        Gap((f"kernel={kernel}", f"normaliser={other}"), BUILT, f"{kernel} knows the softmax only")
        for kernel in ("sdpa", "flex")
        for other in NO_SOFTMAX
    ),
    *(
        Gap((f"normaliser={other}", "epilogue=sinks"), BUILT, "what is no softmax has no lse")
        for other in NO_SOFTMAX
    ),
    Gap(("kernel=sdpa", "score=ssmax"), BUILT, "sdpa takes additive scores only"),
    Gap(("heads=tied_qkv", "convolution=kv"), BUILT, "one projection has no keys and values apart"),
    Gap(
        ("heads=differential", "epilogue=exclusive"), BUILT, "nothing is left to normalise of the first token"
    ),
    Gap(("heads=differential", "epilogue=convolved"), BUILT, "a map's values are twice as wide"),
    Gap(("kernel=flex",), GRADIENTS, "flex has no backward pass on a CPU"),
    *(
        Gap((f"heads={heads}", "score=qk_norm"), BUILT, "a latent head's keys are not there when they turn")
        for heads in ("mla", "gla")
    ),
    Gap(("heads=gta", "score=qk_norm"), BUILT, "keys are values too"),
    Gap(("heads=tpa", "score=qk_norm"), BUILT, "keys turn as factors, before there are any to normalise"),
    *(
        Gap((f"heads={heads}", f"values={values}"), BUILT, "they have no values apart to mix")
        for heads in ("mla", "gla", "gta", "tpa", "differential", "tied_qkv")
        for values in ("residual", "embedding")
    ),
    Gap(("heads=differential", "epilogue=gate"), BUILT, "a map's values are twice as wide as its gate"),
    *(
        gap
        for heads in ("mla", "gla")
        for gap in (
            Gap((f"heads={heads}", "mask=full"), ("absorbed",), "a full mask cannot be decoded in steps"),
            Gap((f"heads={heads}", "position=rope_dynamic_ntk"), ("absorbed",), "turned keys go out of date"),
        )
    ),
    Gap(("decode=rolling", "mask=window_sinks"), ("left_padded_decode",), "kept tokens stand at one place"),
    *(
        Gap((f"model={cell}",), (*STEPS, "state_size", "left_padding", "documents"), "it keeps no keys")
        for cell in ("lstm", "gru")
    ),
    Gap(("mask=full",), STEPS, "a full mask cannot be decoded in steps"),
    Gap(("position=rope_dynamic_ntk",), (*STEPS, "state_size"), "turned keys would go out of date"),
)


def gap(law: str, choices: frozenset[str]) -> Gap | None:
    """The declared gap of a law for these choices."""
    return next((each for each in GAPS if law in each.laws and choices.issuperset(each.choices)), None)


def impossible() -> list[frozenset[str]]:
    """Choices that cannot be made together at all."""
    return [frozenset(each.choices) for each in GAPS if each.laws == BUILT]
