#!/usr/bin/env bash
# Question: does grouping query heads cost quality at 25M parameters, and what does it save? (gqa_vs_mha, size M)
# Cost: 16 to 88 runs of 75M tokens, about 1e16 FLOPs each, after their tuning: minutes of one H200-class GPU a run (an estimate; `plan`
#   in the place of the launcher's options tells what yours have taken so far).
# Command: sweeps/slurm_M.sh hydra.launcher.partition=gpu hydra.launcher.account=mine
#
# On a login node without a GPU, DEVICE names the one that the nodes have. runs/ must be on a disk that they
# share. A job that is pre-empted is requeued and goes on from its checkpoint; the same command carries on.
set -euo pipefail
exec python -m attnlab +experiment=gqa_vs_mha size=M "sweep.device=${DEVICE:-NVIDIA H200}" \
    hydra/launcher=slurm hydra.launcher.time=120 hydra.launcher.cpus_per_task=8 hydra.launcher.mem=64G \
    hydra.launcher.array_parallelism=8 "$@"
