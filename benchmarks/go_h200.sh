#!/usr/bin/env bash
# Trains 9x9 Go on one GPU for at most so many minutes, keeping a checkpoint every few, and packs
# what is needed to play elsewhere: benchmarks/go_h200.sh OUT [MINUTES] [--FIELD VALUE ...]
# If the learning rate should arrive at its end, give --total-env-steps MINUTES x 60 x moves a second.
set -uo pipefail
out=${1:?usage: benchmarks/go_h200.sh OUT [MINUTES] [--FIELD VALUE ...]}
minutes=${2:-25}
shift $(($# < 2 ? $# : 2))
muesli=${MUESLI:-muesli}
mkdir -p "$out"

# SIGTERM makes a run save and stop (exit code 143); it may take a call to notice.
timeout --signal TERM --kill-after 120 "${minutes}m" $muesli train go_h200 --run-dir "$out/run" "$@"
status=$?

tar -C "$out" -czf "$out/light.tar.gz" run/config.json run/run.json run/metrics.jsonl \
  $(cd "$out" && ls -d run/checkpoints/kept-* 2>/dev/null)
tail -n 1 "$out/run/metrics.jsonl" | cut -c 1-2000
ls -l "$out/light.tar.gz"
[ "$status" -eq 143 ] || [ "$status" -eq 124 ] || exit "$status"
