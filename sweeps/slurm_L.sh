#!/usr/bin/env bash
# Question: does grouping query heads cost quality at 85M parameters, and what does it save? (gqa_vs_mha, size L)
# Cost: 12 runs (three seeds: the report says EXPLORATORY) of 754M tokens, about 7e17 FLOPs each, and before
#   them those that tune rates and tell what training is worth: minutes a run on eight (an estimate, never run).
# Command: sweeps/slurm_L.sh hydra.launcher.partition=gpu hydra.launcher.account=mine
#
# Where a job's limit is shorter than its run, it saves a checkpoint ten minutes before it, is requeued, and
# goes on, as often as it takes. The text comes from the hub: conf/data/fineweb.yaml.
set -euo pipefail
exec python -m attnlab +experiment=gqa_vs_mha size=L seed=0,1,2 "sweep.device=${DEVICE:-NVIDIA H200}" \
    trainer.devices=8 sweep.checkpoint_every=1000 \
    hydra/launcher=slurm hydra.launcher.time=1440 hydra.launcher.signal_delay=600 \
    hydra.launcher.cpus_per_task=64 hydra.launcher.mem=512G hydra.launcher.array_parallelism=3 \
    +hydra.launcher.sbatch.exclusive=true "$@"
