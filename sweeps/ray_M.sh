#!/usr/bin/env bash
# Question: how does a compressed cache (MLA) compare with grouped heads at size M? (mla_vs_gqa)
# Cost: one GPU per run, minutes per run on an H200-class GPU (an estimate; `python -m attnlab plan` prints counts).
# Command: ray start --head, and ray start --address=HEAD:6379 on the other machines; then, on the head,
#   sweeps/ray_M.sh
#
# All machines must share the disk of runs/. Ray 2.59 and later requires a token: the same ~/.ray/auth_token on
# all machines. A run whose machine is lost is recorded as killed; the command resumes it from its last
# checkpoint, up to twice, and so does the same command later.
set -euo pipefail
exec python -m attnlab +experiment=mla_vs_gqa size=M "sweep.device=${DEVICE:-NVIDIA H200}" \
    hydra/launcher=ray hydra.launcher.address=auto hydra.launcher.num_cpus=8 "$@"
