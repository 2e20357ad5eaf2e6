#!/usr/bin/env bash
# Trains 9x9 Go on one GPU for at most so many minutes, or continues where it stopped, and packs what
# is needed to play elsewhere:
#
#   benchmarks/go_h200.sh RUN MINUTES OUT [--FIELD VALUE ...]
#
# RUN is a run directory: new, or one that this script began (its fields then stand). OUT gets run.tgz
# (configuration and metrics) and, of the checkpoints kept so far, KEEP (6) evenly chosen ones as
# kept-<updates>.tgz; unpacked in one place, they are a run directory to play with.
# The learning rate arrives at its end after --total-env-steps: MINUTES x 60 x moves a second.
set -uo pipefail
usage="usage: benchmarks/go_h200.sh RUN MINUTES OUT [--FIELD VALUE ...]"
run=${1:?$usage} minutes=${2:?$usage} out=${3:?$usage}
shift 3
muesli=${MUESLI:-muesli} # may be several words: "python -m muesli.cli.main"
mkdir -p "$out"

command=(train go_h200 --run-dir "$run" "$@")
if ls -d "$run"/checkpoints/step-* >/dev/null 2>&1; then command=(resume "$run"); fi
# SIGTERM makes a run save and stop; it notices at the end of a call, some seconds later.
timeout --signal TERM --kill-after 90 "${minutes}m" $muesli "${command[@]}"
status=$?

tar -C "$run" -czf "$out/run.tgz" config.json run.json metrics.jsonl
mapfile -t kept < <(ls -d "$run"/checkpoints/kept-* 2>/dev/null | sort -V)
keep=${KEEP:-6} last=$((${#kept[@]} - 1))
for ((i = 0; i < keep && last >= 0; i++)); do
  name=$(basename "${kept[$((keep > 1 ? i * last / (keep - 1) : last))]}")
  [ -e "$out/$name.tgz" ] || tar -C "$run" -czf "$out/$name.tgz" "checkpoints/$name"
done
ls -l "$out"
tail -n 1 "$run/metrics.jsonl" | cut -c 1-3000
# Stopped by the clock is what was asked for.
[ "$status" -eq 124 ] || [ "$status" -eq 143 ] || exit "$status"
