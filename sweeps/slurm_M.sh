#!/usr/bin/env bash
# Question: does GQA raise the loss at 25M parameters, and how much KV cache does it save? (gqa_vs_mha, size M)
# Cost: 16 to 88 runs of 75M tokens, about 1e16 FLOPs each, after tuning: minutes per run on one H200-class GPU (an estimate; `plan`
#   instead of the launcher's options prints the times so far).
# Command: sweeps/slurm_M.sh hydra.launcher.partition=gpu hydra.launcher.account=mine
#
# On a login node without a GPU, DEVICE names the GPU of the nodes. The nodes must share the disk of runs/. A
# preempted job is requeued and resumes from its checkpoint; repeating the command resumes the sweep.
set -euo pipefail
exec python -m attnlab +experiment=gqa_vs_mha size=M "sweep.device=${DEVICE:-NVIDIA H200}" \
    hydra/launcher=slurm hydra.launcher.time=120 hydra.launcher.cpus_per_task=8 hydra.launcher.mem=64G \
    hydra.launcher.array_parallelism=8 "$@"
