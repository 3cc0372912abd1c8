#!/usr/bin/env bash
# Question: how does a compressed cache (MLA) compare with grouped heads at size L? (mla_vs_gqa, three seeds)
# Cost: eight GPUs and minutes per run (an estimate, never run). `python -m attnlab plan` with the same experiment
#   and size prints tokens and FLOPs.
# Command: on the head of a Ray cluster whose nodes have eight GPUs: sweeps/ray_L.sh
#
# See ray_M.sh. A run uses all GPUs of a node. Ray places a task on one machine, so no run spans two.
set -euo pipefail
exec python -m attnlab +experiment=mla_vs_gqa size=L seed=0,1,2 "sweep.device=${DEVICE:-NVIDIA H200}" \
    trainer.devices=8 sweep.checkpoint_every=1000 \
    hydra/launcher=ray hydra.launcher.address=auto hydra.launcher.num_cpus=64 "$@"
