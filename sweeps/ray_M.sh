#!/usr/bin/env bash
# Question: does a compressed cache (MLA) hold its own against grouped heads at size M? (mla_vs_gqa)
# Cost: one GPU for each run, minutes a run on an H200-class GPU (an estimate; `python -m attnlab plan` counts).
# Command: ray start --head, and ray start --address=HEAD:6379 on the other machines; then, on the head,
#   sweeps/ray_M.sh
#
# runs/ must be on a disk that all machines share. Clusters of Ray 2.59 and later ask for a token: the same
# ~/.ray/auth_token everywhere. A run whose machine is lost is recorded as killed; sweep.retry_failed=true
# takes it up again, from its last checkpoint.
set -euo pipefail
exec python -m attnlab +experiment=mla_vs_gqa size=M "sweep.device=${DEVICE:-NVIDIA H200}" \
    hydra/launcher=ray hydra.launcher.address=auto hydra.launcher.num_cpus=8 "$@"
