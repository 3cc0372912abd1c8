#!/usr/bin/env bash
# Question: does a compressed cache (MLA) hold its own against grouped heads at size L? (mla_vs_gqa, three seeds)
# Cost: eight GPUs for each run, minutes a run (an estimate, never run): ask `python -m attnlab plan` with the same
#   experiment and size for tokens and FLOPs first.
# Command: on the head of a Ray cluster whose nodes have eight GPUs: sweeps/ray_L.sh
#
# As ray_M.sh. A run takes whole nodes: Ray places a task on one machine, and so no run spans two.
set -euo pipefail
exec python -m attnlab +experiment=mla_vs_gqa size=L seed=0,1,2 "sweep.device=${DEVICE:-NVIDIA H200}" \
    trainer.devices=8 sweep.checkpoint_every=1000 \
    hydra/launcher=ray hydra.launcher.address=auto hydra.launcher.num_cpus=64 "$@"
