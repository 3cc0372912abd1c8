#!/usr/bin/env bash
# Question: does GQA raise the loss at 25M parameters, and how much KV cache does it save? (gqa_vs_mha, size M)
# Cost: all GPUs of the hosts for at most twelve hours; `python -m attnlab plan gqa_vs_mha size=M` lists the runs.
# Command: in the clone: sweeps/work_ssh.sh HOST...
#
# The hosts must have the same kind of GPU, and see the clone and its .venv at the same path. Each GPU gets one worker, in
# a window of the tmux session `attnlab`, unless it has one. `ssh HOST tmux attach -t attnlab` shows the windows. Ctrl-C in a
# window ends its worker, which saves a checkpoint.
set -euo pipefail
work=".venv/bin/python -m attnlab work +experiment=gqa_vs_mha size=M --for 12h --idle 10m"
folder=$(printf %q "$PWD")
for host in "$@"; do
    windows=$(ssh "$host" "tmux list-windows -t attnlab -F '#W' 2>/dev/null || true")
    for gpu in $(ssh "$host" nvidia-smi --query-gpu=index --format=csv,noheader); do
        if grep -qx "gpu$gpu" <<<"$windows"; then continue; fi
        window="cd $folder && CUDA_VISIBLE_DEVICES=$gpu $work"
        new="tmux new-session -d -s attnlab -n gpu$gpu $(printf %q "$window")"
        # shellcheck disable=SC2029  # the strings are quoted for the host's shell
        ssh "$host" "$new 2>/dev/null || ${new/new-session -d -s/new-window -d -t}"
    done
done
