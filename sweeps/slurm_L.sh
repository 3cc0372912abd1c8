#!/usr/bin/env bash
# Question: does grouping query heads cost quality at 1.2B parameters, and what does it save? (gqa_vs_mha, size L)
# Cost: 9 runs (three seeds: the report says EXPLORATORY) of 1e11 tokens, about 7e20 FLOPs each: some 500
#   GPU-hours a run at 400 TFLOP/s, so 60 hours on a node of eight (an estimate, never run).
# Command: sweeps/slurm_L.sh hydra.launcher.partition=gpu hydra.launcher.account=mine
#
# A day's limit is shorter than a run: each job saves a checkpoint ten minutes before it, is requeued, and
# goes on, as often as it takes.
set -euo pipefail
exec python -m attnlab +experiment=gqa_vs_mha size=L seed=0,1,2 "sweep.device=${DEVICE:-NVIDIA H200}" \
    trainer.devices=8 sweep.checkpoint_every=1000 \
    hydra/launcher=slurm hydra.launcher.time=1440 hydra.launcher.signal_delay=600 \
    hydra.launcher.cpus_per_task=64 hydra.launcher.mem=512G hydra.launcher.array_parallelism=3 \
    +hydra.launcher.sbatch.exclusive=true "$@"
