#!/usr/bin/env bash
# Question: does GQA raise the loss at 85M parameters, and how much KV cache does it save? (gqa_vs_mha, size L)
# Cost: 12 runs (three seeds, so the report is EXPLORATORY) of 754M tokens, about 7e17 FLOPs each, after the runs
#   for tuning and compute calibration: minutes per run on eight GPUs (an estimate, never run).
# Command: sweeps/slurm_L.sh hydra.launcher.partition=gpu hydra.launcher.account=mine
#
# If a run takes longer than the time limit of its job, the job saves a checkpoint ten minutes before the limit, is
# requeued and resumes. The corpus comes from the Hugging Face hub: conf/data/fineweb.yaml.
set -euo pipefail
exec python -m attnlab +experiment=gqa_vs_mha size=L seed=0,1,2 "sweep.device=${DEVICE:-NVIDIA H200}" \
    trainer.devices=8 sweep.checkpoint_every=1000 \
    hydra/launcher=slurm hydra.launcher.time=1440 hydra.launcher.signal_delay=600 \
    hydra.launcher.cpus_per_task=64 hydra.launcher.mem=512G hydra.launcher.array_parallelism=3 \
    +hydra.launcher.sbatch.exclusive=true "$@"
