#!/usr/bin/env bash
# Question: does GQA raise the loss at 25M parameters, and how much KV cache does it save? (gqa_vs_mha, size M)
# Cost: eight GPUs for at most two hours; less if the verdict is reached before. `python -m attnlab plan gqa_vs_mha size=M`
#   lists the runs.
# Command: sbatch --partition=gpu --account=mine sweeps/work_slurm.sh
#
# Submit it in the clone, with its environment active, on a disk that all nodes share. Each task of the array is one
# worker and ends ten minutes before its time limit. A preempted task is requeued and resumes its run. Submit it again,
# also beside tasks that still run, until the report is written.
#SBATCH --job-name=attnlab
#SBATCH --array=0-7
#SBATCH --ntasks=1
#SBATCH --gres=gpu:1
#SBATCH --cpus-per-task=8
#SBATCH --mem=64G
#SBATCH --time=2:10:00
#SBATCH --requeue
#SBATCH --open-mode=append
set -euo pipefail
exec srun python -m attnlab work +experiment=gqa_vs_mha size=M --for 2h "$@"
