"""Synthetic runs with known effects: each difference between arms has exactly the requested mean and sd."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from attnlab.measure import length_generalization, resources
from attnlab.measure.accuracy import STEPS_TO_90
from attnlab.measure.step_timing import TIME_METRICS
from attnlab.measure.text.bits_per_byte import BITS_PER_BYTE
from attnlab.report.schema import ClaimResult, HeadsReport, Provenance, TimingInterval, TimingResult
from attnlab.report.tables import head_maps, map_archive
from attnlab.report.verdicts.results import Run, SweepContext, read_run
from attnlab.store.experiment_schema import Experiment
from attnlab.store.run_schema import Failure, RunEstimate, RunResult, TokenCategoryLoss, index_by_name
from attnlab.training.final_metrics import LOSS_METRICS

STEPS, BATCH, CONTEXT = 400, 512, 64
TAIL = ["Epoch 0: 41%", "RuntimeError: something gave way", "  in attention/layer.py, line 7"]


@dataclass
class World:
    """True effects of a synthetic sweep: mean difference to the baseline per arm, sd of differences, and
    failures.
    """

    effects: dict[str, float] = field(default_factory=lambda: {"mha": 0.0, "gqa": 0.004, "mqa": 0.06})
    sd: float = 0.008
    seeds: list[int] = field(default_factory=lambda: [0, 1, 2, 3, 4])
    status: dict[tuple[str, int], str] = field(default_factory=dict)  # "missing" leaves no run.json
    parameters: dict[str, int] = field(default_factory=dict)
    tokens: list[str] = field(default_factory=lambda: list("the cat sat on the mat; the dog sat on it."))
    layers: int = 2
    note: str = ""  # added to the config of each arm and to failure messages
    leakage: dict[str, dict[str, float]] = field(default_factory=dict)  # by arm
    data: dict[str, dict[str, Any]] = field(default_factory=dict)  # by arm, facts that differ
    config: dict[str, dict[str, Any]] = field(default_factory=dict)  # by arm, config groups that differ
    extra: dict[str, float] = field(default_factory=dict)  # additional metrics, equal in all runs
    points: int = 1  # number of training steps with maps
    sample: str = ""  # generated text of every run; adds losses by token category


KV = {"mha": 4, "gqa": 2, "mqa": 1}
CACHE_RATIO = {"metric": "kv_bytes_per_token", "compare": "ratio"}


def build_context(world: World, **changes: Any) -> SweepContext:
    """Build the sweep context of a world; `changes` replace keys of its experiment file or of the context."""
    arms = list(world.effects)
    settings: dict[str, Any] = {
        "name": "gqa_vs_mha",
        "size": "debug",
        "question": "Does sharing key and value heads cost quality, and what does it save?",
        "arms": arms,
        "baseline": "mha",
        "seeds": list(world.seeds),
        "controlled": ["params", "tokens"],
        "match": "params",
        "match_by": "model.ffn_width",
        "metric": "val/loss",
        "direction": "lower",
        "margin": 0.03,
        "margin_reason": "15 % of the gap between one head and four in the same harness",
        "claims": [
            declare_claim("gqa is as good as mha, within the margin", "gqa", "within", 0.03),
            declare_claim("mqa is worse than mha", "mqa", "above", 0.0),
            declare_claim("gqa keeps at most half of the KV cache", "gqa", "below", 0.51, **CACHE_RATIO),
        ],
    }
    settings["claims"] = [
        {**claim, "says": f"{claim['says']}{world.note}"}
        for claim in settings["claims"]
        if claim["arm"] in arms
    ]
    keys = {**settings, **changes}
    experiment = {key: keys.pop(key) for key in Experiment.model_fields if key in keys}
    return SweepContext(Experiment.model_validate(experiment), **keys)


def build_provenance(**changes: Any) -> Provenance:
    """Build the provenance of a report; `changes` replace its fields."""
    fields: dict[str, Any] = {
        "command": "python -m attnlab +experiment=gqa_vs_mha size=debug",
        "commit": "0123456789abcdef0123456789abcdef01234567",
        "dirty": False,
        "dirty_diff": None,
        "packages": {"torch": "2.13.0", "numpy": "2.4.6"},
        "device": "cpu (2 cores)",
        "date": "2026-01-02",
        "preregistered": {},
        "preregistration_sha256": "ab" * 32,
        "changed": [],
    }
    return Provenance(**fields | changes)


def build_timing(world: World) -> TimingResult:
    """Build interleaved timings in which every later arm is faster."""

    def row(median: float) -> TimingInterval:
        step = int(median * 10) % 4 + 3  # so that two arms are slow in different repeats
        samples = [median * (1 + 0.01 * ((step * i) % 11 % 5 - 2)) for i in range(20)]
        return TimingInterval(median=median, low=median * 0.99, high=median * 1.01, samples=samples)

    arms: dict[str, dict[str, TimingInterval | str | None]] = {
        arm: {
            "train_step_ms": row(21.0 - i),
            "decode_ms_per_token": row(1.4 - 0.1 * i),
            "decode_uncached_ms_per_token": None,
            "note": None,
        }
        for i, arm in enumerate(world.effects)
    }
    return TimingResult(
        order="ABBA",
        metric_definitions=dict(TIME_METRICS),
        device="cpu",
        threads=1,
        context=CONTEXT,
        batch=8,
        arms=arms,
    )


def build_claim_result(low: float | None, high: float | None, verdict: str, **changes: Any) -> ClaimResult:
    """Build a claim that gqa is non-inferior to mha within 0.03 nats, decided on a 95% interval."""
    bounds = [bound for bound in (low, high) if bound is not None]
    interval = {"low": low, "high": high, "level": 0.95}
    fields = {
        "says": "gqa is as good as mha", "arm": "gqa", "against": "mha", "metric": "val/loss",
        "compare": "difference", "is": "below", "threshold": 0.03, "threshold_text": None, "identity": False,
        "reason": None, "direction": "lower", "label": "val/loss", "unit": "nats", "basis": "t",
        "exploratory": False, "timed": False, "verdict": verdict, "not_comparable": [],
        "untrained_reason": None, "unknown_threshold_reason": None, "leaking_by_design": [], "planned": 6,
        "interim_analyses": None, "training_equivalent": None, "digits": 3,
        "decision": {
            **interval, "n": 6, "estimate": sum(bounds) / len(bounds) if bounds else None, "alpha": 0.05,
            "p": 0.01, "p_holm": 0.01, "exact": False,
        },
        "interval": interval if bounds else None, "required_seeds": None, "threshold_sign_flip": None,
        "sign_flip": None, "leave_one_out": None, "pairing": None, "outliers": [],
    }  # fmt: skip
    fields["decision"] |= changes.pop("decision", {})
    return ClaimResult.model_validate(fields | changes)


def draw_noise(world: World, arm: str) -> np.ndarray:
    """Draw one number per seed, with mean exactly 0 and sd exactly `world.sd`."""
    rng = np.random.default_rng(sum(map(ord, arm)))
    draws = rng.normal(size=len(world.seeds))
    if len(draws) < 2:
        return np.zeros(len(draws))
    draws -= draws.mean()
    return world.sd * draws / draws.std(ddof=1)


def write_runs(folder: Path, world: World) -> list[Run]:
    """Write the run folders of a sweep, and read the runs back from them."""
    baseline_losses = 1.78 + 0.02 * np.random.default_rng(1).normal(size=len(world.seeds))
    runs = []
    for arm, effect in world.effects.items():
        losses = baseline_losses + (effect + draw_noise(world, arm) if arm != "mha" else 0.0)
        for seed, loss in zip(world.seeds, losses, strict=True):
            run_folder = folder / f"{arm}{seed}".encode().hex().ljust(16, "0")[:16]
            status = world.status.get((arm, seed), "done")
            if status != "missing":
                _write_run(run_folder, world, arm, seed, float(loss), status)
            runs.append(read_run(run_folder, arm, seed))
    return runs


def _write_run(folder: Path, world: World, arm: str, seed: int, loss: float, status: str) -> None:
    folder.mkdir(parents=True)
    kv = KV.get(arm, 4)
    done = status == "done"
    kv_bytes = 2 * world.layers * kv * 16 * 4
    heads = np.linspace(0.05, 0.6, 4 * world.layers).reshape(world.layers, 4)
    heads = np.clip(heads + 0.03 * np.random.default_rng(seed + kv).normal(size=heads.shape), 0, 1)
    result = RunResult(
        id=folder.name,
        status=status,
        seed=seed,
        failure=None if done else Failure(message=f"loss is not a number{world.note}", step=160, tail=TAIL),
        config={
            "seed": seed,
            "size": "debug",
            "model": {
                "dim": 64,
                "n_layers": world.layers,
                "ffn_width": 256 + 16 * (4 - kv),
                **({"note": f"{world.note}{arm}"} if world.note else {}),
                "attention": {"heads": {"n_heads": 4, "n_kv_heads": kv}},
            },
            "optim": {"lr": 3e-3},
            "trainer": {"max_steps": STEPS},
            "paths": {"runs": "runs"},
            **world.config.get(arm, {}),
        },
        estimate=build_estimate(world.parameters.get(arm, 120_000), kv, kv_bytes, world.data.get(arm, {})),
        environment={
            "python": "3.11.7",
            "platform": "Linux",
            "cpu": "some cpu",
            "device": "cpu",
            "threads": 1,
            "packages": {"torch": "2.13.0", "pytorch-lightning": "2.6.1", "numpy": "2.4.6"},
        },
        metrics={"val/loss": loss, "val/best_loss": loss - 0.001, "train/loss": loss - 0.1, **world.extra}
        if done
        else {},
        metric_definitions=LOSS_METRICS
        | resources.MEMORY_METRICS
        | index_by_name(
            STEPS_TO_90,
            resources.THROUGHPUT,
            BITS_PER_BYTE,
            *(
                replace(length_generalization.list_length_metrics([2])[0], name=name)
                for name in world.extra
                if name != BITS_PER_BYTE.name
            ),
        ),
        by_position={"val/loss": [None, *(loss + 1 / i for i in range(1, CONTEXT))]} if done else {},
        targets_by_position=(0, *[128] * (CONTEXT - 1)) if done else (),
        memory={
            "kv_bytes_per_token_formula": kv_bytes,
            "kv_bytes_per_token_live": kv_bytes,
            "saved_for_backward_bytes": 1_000_000 + kv,
            "peak_rss_bytes": 400_000_000,
            "peak_cuda_bytes": None,
        },
        speed={"train_tokens_per_s": 24_000.0 + 100 * seed},
        kernels={"max_abs_eager_fused": 2.4e-7, "note": None},
        leakage=world.leakage.get(arm, {}),
        by_token_category=build_token_losses(loss) if done and world.sample else {},
        generated_text={"prompt": "the cat ", "rest": "sat", "sample": world.sample, "reason": None}
        if done and world.sample
        else {},
        head_scores={
            "previous": heads.tolist(),
            "sink": heads[::-1].tolist(),
            "entropy": (1 - heads).tolist(),
            "induction": heads.T.reshape(heads.shape).tolist(),
            "copying": None,
            "chance": {"previous": 0.059, "sink": 0.074, "entropy": 1.0, "induction": 0.049},
            "notes": {"copying": "Toy heads have no separate values"},
        }
        if done
        else {},
        measured_by={"heads": "0a" * 8, "memory": "0b" * 8} if done else {},
        observed_by={"maps": "0c" * 8} if done else {},
        started="2026-01-02T03:04:05+00:00",
        seconds=12.5,
    )
    (folder / "run.json").write_text(json.dumps(result.to_dict()))
    points = np.arange(20, STEPS + 1, 20)
    values = loss + 2.2 * np.exp(-points / 90) + 0.01 * np.sin(points + seed)
    values[-1] = loss
    points, values = (points, values) if done else (points[:8], values[:8])
    pq.write_table(
        pa.table(
            {
                "step": points,
                "tokens": points * BATCH,
                "name": ["val/loss"] * len(points),
                "value": values,
            }
        ),
        folder / "curves.parquet",
    )
    if done:
        np.savez(folder / "attention.npz", **build_attention_maps(world, kv, seed))


def build_estimate(
    parameters: int, kv: int, kv_bytes: int, data: Mapping[str, Any] = MappingProxyType({})
) -> RunEstimate:
    """Build the estimate of a run before it starts; `data` replaces facts of its data."""
    return RunEstimate(
        parameters=parameters,
        parameters_non_embedding=parameters - 6208,
        parameters_attention=8192 + 2048 * kv,
        tokens=STEPS * BATCH,
        steps=STEPS,
        flops_per_token=6 * parameters,
        lr=3e-3,
        context=CONTEXT,
        kv_bytes_per_token=kv_bytes,
        dtype="float32",
        kernel="sdpa",
        device="cpu",
        batch_tokens=BATCH,
        data={
            "name": "text",
            "sha256": "cd" * 32,
            "train_tokens": 419_430,
            "val_tokens": 46_603,
            "vocab_size": 97,
            "val_windows": 128,
            "unit": "char",
            "validation": "ef" * 32,
            "val_text": "01" * 32,
            **data,
        },
        metric_definitions=resources.BUDGET_METRICS | LOSS_METRICS,
    )


def build_token_losses(loss: float) -> dict[str, TokenCategoryLoss]:
    """Split a mean loss into a lower one of inner letters and a higher one of digits."""
    return {
        "inside": TokenCategoryLoss(loss=loss - 0.5, targets=60),
        "digit": TokenCategoryLoss(loss=loss + 1, targets=4),
    }


def replace_fields(model: Any, **changes: Any) -> Any:
    """Return the model with fields replaced; `a__b` is field b of its field a."""
    update: dict[str, Any] = {}
    for name, value in changes.items():
        field_name, _, inner = name.partition("__")
        before = update.get(field_name, getattr(model, field_name))
        update[field_name] = replace_fields(before, **{inner: value}) if inner else value
    return model.model_copy(update=update)


def declare_claim(says: str, arm: str, relation: str, threshold: Any, **more: Any) -> dict[str, Any]:
    """A claim as an experiment file declares it."""
    return {"says": says, "arm": arm, "is": relation, "threshold": threshold, **more}


def replace_result(run: Run, **changes: Any) -> Run:
    """Return the run with some fields of its result replaced."""
    assert run.result is not None
    assert changes.keys() <= RunResult.model_fields.keys()
    return replace(run, result=replace_fields(run.result, **changes))


def build_attention_maps(world: World, kv: int, seed: int) -> dict[str, np.ndarray]:
    """Build maps with a previous-token head, a first-token head and noisy ones, one byte sqrt(a) per cell."""
    length, heads = len(world.tokens), 4
    rng = np.random.default_rng(seed * 7 + kv)
    scores = rng.normal(0, 0.9, (world.layers, heads, length, length))[None].repeat(world.points, 0)
    for point in range(world.points):  # both heads emerge during training
        for row in range(length):
            scores[point, 0, 0, row, max(row - 1, 0)] += 5 * (point + 1) / world.points
            scores[point, -1, 1, row, 0] += 4 * (point + 1) / world.points
    visible = np.tril(np.ones((length, length), bool))
    scores[:, :, :, ~visible] = -np.inf
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    groups = np.repeat(np.arange(kv), heads // kv)[None].repeat(world.layers, 0)
    return {
        "maps": np.round(255 * np.sqrt(weights)).astype(np.uint8),
        "visible": visible[None].repeat(world.layers, 0),
        "steps": STEPS * np.arange(1, world.points + 1) // world.points,
        "tokens": np.array(world.tokens),
        "groups": groups,
    }


def collect_maps(runs: list[Run]) -> dict[tuple[str, int], Any]:
    """Collect the attention maps of runs, as in the attention.npz of their report."""
    return {(run.arm, run.seed): run.maps for run in runs if run.maps}


def select_page_maps(report: HeadsReport, folder: Path) -> head_maps.MapSelection:
    """Select the maps that the page of the report in a folder shows."""
    selection = head_maps.select_maps(report, map_archive.read_archive(folder / map_archive.ARCHIVE_NAME))
    assert selection is not None
    return selection
