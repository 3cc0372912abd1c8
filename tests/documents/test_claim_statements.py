"""Every claim of an experiment file can be read alone: it names its arms, its metric and its comparison."""

import re
from typing import Any

import pytest
from experiment_files import list_claim_arms, load_expanded
from omegaconf import OmegaConf

from attnlab.config import CONF

# An arm is named by its name or the first word of it, or by its long form (EXPERIMENT/ARM, else ARM).
LONG_FORMS = {
    "aa_null/twin": "repeated run",
    "aa_null/fresh": "runs with other seeds",
    "aa_null/one": "baseline",
    "attention_residuals/plain": "residual sum",
    "sdpa": "fused kernel",
    "cached": "dynamic KV cache",
    "wrong_offset": "positions off by one",
    "unmasked": "without a (causal )?mask",
    "compositional_heads/several": "four heads",
    "grouped": "grouped decoding step|quarter of the KV heads",
    "repeated": "copying shared keys",
    "every_variant/mha": "sequential block|pre-norms",
    "forgetting_attention/none": "neither gates nor positions",
    "none": "without positions",
    "gate_few/plain": "no gate",
    "mean_5": "by the group mean|pooled to half",
    "mean_10": "pooled to half",
    "head_pruning/least": "least important|each be removed|labels of .* heads|text models",
    "shuffled": "random order",
    "least_induction": "induction models",
    "single": "one head",
    "tied": "one (shared )?projection",
    "mha_bare": "separate projections",
    "hybrid_ratio/none": "gated delta rule in all layers",
    "hybrid_recall/none": "gated delta rule in all layers",
    "hybrid_ratio/full": "attention in all layers",
    "half": "every second layer",
    "quarter": "every fourth layer",
    "local_global": "every second layer",
    "published": "GPT-2|Llama|DeepSeek",
    "int8": "8-bit",
    "int4": "4 bits",
    "none_kv": "convolved keys and values",
    "nope_convolution/none": "plain ones",
    "parity_write_range/positive": "strengths up to 1",
    "parity_write_range/negative": "strengths up to 2",
    "off_by_one": "1 added to its denominator",
    "scaled": r"divided by sqrt\(d\)",
    "unscaled": r"without the division by sqrt\(d\)",
    "softcap": "capped",
    "direct": "no scaling",
    "trained": "before fine-tuning|no scaling",
    "h1": "one head",
    "h4": "four heads",
    "h16": "sixteen heads",
    "smoke/mha": "causal attention",
    "window": "windows?",
    "taylor_16": "153 rows",
    "value_residual/residual": "first layer's values",
    "value_residual/embedding": "table's values",
    "taylor_8": "45 rows",
    "taylor_4": "15 rows",
    "taylor_2": "6 rows",
    "attention_residuals/plain_deep": "residual sum",
    "tied_qkv": "one (shared )?projection",
    "int4_token": "per token",
    "int4_recall": "4-bit",
    "unmasked_then_causal": "trained without a mask",
    "gpt2": "GPT-2",
    "mha_to_mla/nope": "without positions",
    "mha_to_mla/latent": "without rotation",
}
METRICS = {  # the first pattern that matches names the metric
    r"val/loss": "validation loss|copying loss",
    r"train/loss": "training loss",
    r"steps_to_\d+": r"steps to \d+% accuracy",
    r"kv_bytes.*": "cache",
    r"length/excess/.*": "excess loss|loss of .* at four times the length",
    r"loss/length/.*": "copying loss|on (parity|S3|the flip-flop language), .* loss",
    r"(loss/distance|length)/.*": "loss",
    r"cache/rise": "validation loss",
    r"cache/rise/.*|pruned/.*": "loss",
    r"cache/logit_difference": "logits",
    r"cache/tokens_differing": "tokens",
    r"speedup/share|exponent/gap": "speed-up",
    r"exponent/step": "time, .* grows",
    r"exponent/saved": "memory, .* grows",
    r"crossover/over_dim": "at a length",
    r"heads/sink": "attention weight on the first token",
    r"bandwidth/r2_.*": "variance",
    r"bandwidth/share": "bandwidth",
    r"bandwidth/saving.*": "time saved|saves decoding time",
    r"removable/share": "heads",
    r"labels/agreement": "labels .* agree",
    r"rate/best": "best learning rate",
    r"scores/variance_over_dim": "variance",
    r"growth/variance": "growth exponent of the variance",
    r"growth/magnitude": "growth exponent",
    r"softmax/largest": "largest of .* softmax weights",
    r"softmax/jacobian": "trace of the softmax Jacobian",
    r"softmax/entropy": "entropy of softmax weights",
}
COMPARISONS = {
    "below": r"lower|less|fewer|below|smaller|halves|has an? (third|quarter|twelfth) of|rounding only",
    "above": r"higher|less than the sum|more (steps .* )?than|above",
    "within": r"equivalent to|add up|equals?|within|exactly|in proportion to",
}
STATED = "stated"  # the arm of a theoretical value, which the claim states as a number
CLAIMS = [
    pytest.param(path.stem, experiment, claim, id=f"{path.stem}-{i}")
    for path in sorted((CONF / "experiment").glob("*.yaml"))
    for experiment in [load_expanded(path)]
    for i, claim in enumerate(experiment.claims)
]


def names_arm(says: str, name: str, arm: str) -> bool:
    long_form = LONG_FORMS.get(f"{name}/{arm}", LONG_FORMS.get(arm, ""))
    first_word = re.escape(arm.partition("_")[0])
    pattern = "|".join(filter(None, [re.escape(arm), f"{first_word}s?", long_form]))
    return arm == STATED or bool(re.search(rf"\b({pattern})(?!\w)", says, re.IGNORECASE))


def names_comparison(says: str, claim: Any, metric: str, margin: Any) -> bool:
    """Whether a claim uses the words of its relation, and a claim about a loss states its threshold too."""
    if "equivalent" in says and claim["is"] != "within":
        return False
    pattern = COMPARISONS[claim["is"]]
    if "loss" not in metric and "length" not in metric and not metric.startswith("cache/rise"):
        return bool(re.search(rf"\b({pattern})\b", says))
    threshold = margin if claim.threshold in ("margin", "-margin") else claim.threshold
    has_margin = OmegaConf.is_config(threshold) or threshold > 0
    if claim["is"] == "below" and has_margin and claim.threshold != "-margin":
        pattern = "non-inferior"
    number = (
        "5% of training compute"
        if OmegaConf.is_config(threshold)
        else f"{abs(threshold):g}".replace("e-0", "e-")
    )
    return bool(re.search(rf"\b({pattern})\b", says)) and (threshold == 0 or number in says)


@pytest.mark.parametrize(("name", "experiment", "claim"), CLAIMS)
def test_claim_names_its_arms_metric_and_comparison(name, experiment, claim):
    says = claim.says
    metric = claim.get("metric") or experiment.metric
    metric_pattern = next(names for pattern, names in METRICS.items() if re.fullmatch(pattern, metric))
    arms = claim.get("interaction") or list_claim_arms(claim, experiment.baseline)
    missing = [arm for arm in arms if not names_arm(says, name, arm)]
    if not re.search(metric_pattern, says):
        missing.append(metric)
    if not names_comparison(says, claim, metric, experiment.get("margin")):
        missing.append(f"{claim['is']} {claim.threshold}")
    assert not missing, f"{says!r} does not name {missing}"
