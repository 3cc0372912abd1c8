"""Valid files of every kind that a verb reads, for attempts to mutate."""

import csv
import importlib.util
import json
import random
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
from forked_command import run_forked
from in_process_runs import plan_runs, train_two_steps
from pyarrow import parquet as pq

from attnlab.config import CONF
from attnlab.store.fingerprint import compute_digest
from attnlab.store.guards import ownership

WORDS = "the quick brown fox jumps over the lazy dog; pack my box with five dozen liquor jugs.\n" * 40
EXPERIMENT = """\
# @package _global_
name: mine
question: Is GQA with half the KV heads non-inferior to MHA?
arms: [mha, gqa]
arm_overrides:
  mha: []
  gqa: [heads=gqa]
baseline: mha
size: debug
seeds: [0, 1, 2]
looks: [2, 3]
controlled: [tokens]
match: params
match_by: model.ffn_width
metric: val/loss
direction: lower
margin: 0.10
margin_reason: "A few seeds show large effects only."
overrides: [trainer.max_steps=20]
ladder: null
tune: null
claims:
  - {says: "GQA halves the cache", arm: gqa, metric: kv_bytes_per_token, compare: ratio, is: below,
     threshold: 0.51, reason: "0.5 plus 0.01 rounding tolerance.", source: "Ainslie et al. 2023",
     source_says: "half the cache"}
  - {says: "GQA is non-inferior to MHA in validation loss", arm: gqa, is: below, threshold: 0.1,
     reason: "The margin.", source: "Ainslie et al. 2023", source_says: "quality close to MHA"}
"""
LLAMA = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "hidden_act": "silu",
    "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "tie_word_embeddings": False,
    "max_position_embeddings": 8192,
    "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                     "original_max_position_embeddings": 8192},
}  # fmt: skip
HUB_CONFIGS: dict[str, dict[str, Any]] = {
    "llama": LLAMA,
    "mistral": {key: value for key, value in LLAMA.items() if key != "rope_scaling"}
    | {"model_type": "mistral", "sliding_window": 4096},
    "qwen3": LLAMA | {"model_type": "qwen3", "head_dim": 128, "rms_norm_eps": 1e-6, "rope_scaling": None},
    "deepseek_v3": {
        "model_type": "deepseek_v3", "hidden_size": 7168, "intermediate_size": 18432, "num_hidden_layers": 61,
        "num_attention_heads": 128, "num_key_value_heads": 128, "vocab_size": 129280, "rms_norm_eps": 1e-6,
        "first_k_dense_replace": 3, "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8,
        "moe_intermediate_size": 2048, "moe_layer_freq": 1, "q_lora_rank": 1536, "kv_lora_rank": 512,
        "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "rope_theta": 10000,
        "rope_scaling": {"type": "yarn", "factor": 40, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0,
                         "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096},
    },
}  # fmt: skip


def make_workplace(root: Path) -> Path:
    """Write a valid file of every kind that a verb reads."""
    for folder in ("conf/experiment", "conf/heads", "hub_configs", "home", "events", "report", "other"):
        (root / folder).mkdir(parents=True)
    (root / "book.txt").write_text(WORDS)
    noise = random.Random(0)
    losses = {
        name: [mean + noise.gauss(0, 0.01) for _ in range(6)] for name, mean in (("a", 3.0), ("b", 2.9))
    }
    for name, values in losses.items():
        rows = [
            {"seed": seed, "val_loss": round(value, 5), "status": "done"} for seed, value in enumerate(values)
        ]
        write_csv(root / f"{name}.csv", rows)
        (root / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        pq.write_table(pa.Table.from_pylist(rows), root / f"{name}.parquet")
    steps = [
        {
            "step": step,
            "seed": seed,
            "val_loss": round(value + 1 / step, 5),
            "created_at": "2025-05-01T10:00:00Z",
        }
        for seed, value in enumerate(losses["a"])
        for step in (10, 20, 30)
    ]
    write_csv(root / "steps.csv", steps)
    arms = [
        {"arm": arm, "seed": seed, "val_loss": value}
        for arm in "ab"
        for seed, value in enumerate(losses[arm])
    ]
    write_csv(root / "arms.csv", arms)
    wide = [
        {"Step": step}
        | {f"run seed={seed} - val_loss": value + 1 / step for seed, value in enumerate(losses["a"])}
        for step in (10, 20)
    ]
    write_csv(root / "wide.csv", wide)
    if importlib.util.find_spec("tensorboard"):
        from torch.utils.tensorboard import SummaryWriter

        for seed, value in enumerate(losses["a"]):
            with SummaryWriter(str(root / "events" / f"seed={seed}")) as writer:
                writer.add_scalar("val_loss", value, 10)
    content = (
        "import pathlib\npathlib.Path(__file__).with_name('executed').touch()\n\n\ndef Run(**_):\n    pass\n"
    )
    (root / "home" / "canary.py").write_text(content)
    (root / "conf" / "experiment" / "mine.yaml").write_text(EXPERIMENT)
    (root / "conf" / "heads" / "own.yaml").write_text((CONF / "heads" / "gqa.yaml").read_text())
    shutil.copy(CONF.parent / "reports" / "reference" / "smoke" / "report.json", root / "report")
    small = ["size=debug", "model=llama", "data=text", f"data.path={root}/book.txt", "data.val_windows=5"]
    small += [
        "data.allow_overlap=true",
        "trainer.max_steps=2",
        "measure.timing=false",
        "logger=none",
        f"paths.cache={root}/cache",
    ]
    for store, changes in ((root, ["seed=0,1"]), (root / "other", ["seed=0,1", "optim.lr=2e-3"])):
        for spec in plan_runs([*small, *changes, f"paths.runs={store}/runs"]):
            assert train_two_steps(spec, store) == "trained"
        ownership.mark_store(store / "runs")
    name = next(path.name for path in (root / "runs").iterdir() if (path / "run.json").exists())
    question = ["--metric", "val_loss", "--lower-is-better", "--margin", "0.01"]
    for words in (
        ["export", f"run={name}", f"runs={root}/runs", "to=checkpoint"],
        ["judge", "c.csv", "d.csv", "--declare", "declared.json", *question, "--looks", "6"],
        ["judge", "--champion", "a.csv", "--log", "log.jsonl", "b.csv", *question],
    ):
        ending = run_forked(words, root, 300)
        assert ending.status == 0, ending.output
    declared = json.loads((root / "declared.json").read_text()) | {
        "files": [f"{root}/a.csv", f"{root}/b.csv"]
    }
    declared.pop("digest")
    (root / "declared.json").write_text(json.dumps(declared | {"digest": compute_digest(declared, 64)}))
    shutil.copy(root / "checkpoint" / "config.json", root / "hub_configs" / "small.json")
    for name, hub_config in HUB_CONFIGS.items():
        (root / "hub_configs" / f"{name}.json").write_text(json.dumps(hub_config))
    return root


def write_csv(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write rows as CSV."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def take_snapshot(root: Path, omitted: tuple[str, ...] = ()) -> dict[str, tuple[int, ...]]:
    """Return kind, size and time of every file below a folder, without the omitted folders."""
    snapshot = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if name.split("/")[0] not in omitted:
            status = path.lstat()
            snapshot[name] = (
                status.st_mode,
                0 if path.is_dir() else status.st_mtime_ns,
                0 if path.is_dir() else status.st_size,
            )
    return snapshot
