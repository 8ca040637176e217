#!/usr/bin/env bash
# Gather what scripts/ab_eval.sh left in runs/ into the records that are committed, and sum them up:
#
#   scripts/ab_collect.sh DATASET FOLDER      e.g. scripts/ab_collect.sh synthetic results/ab-synthetic
set -euo pipefail
cd "$(dirname "$0")/.."

if [ $# -ne 2 ]; then
  echo "usage: scripts/ab_collect.sh DATASET FOLDER" >&2
  exit 2
fi
dataset=$1 folder=$2
for run in runs/ab-"$dataset"-*; do
  [ -f "$run/eval/eval.json" ] || continue
  to="$folder/runs/${run#runs/ab-"$dataset"-}"
  mkdir -p "$to/eval/decisions"
  cp "$run/eval/eval.json" "$to/eval/"
  cp "$run"/eval/decisions/* "$to/eval/decisions/"
  [ -f "$run/config.json" ] || continue  # the base was not trained
  cp "$run/config.json" "$to/"
  [ ! -f "$run/evals.jsonl" ] || cp "$run/evals.jsonl" "$to/"
  gzip -n -c "$run/metrics.jsonl" >"$to/metrics.jsonl.gz"
done
uv run --all-extras python scripts/ab_table.py "$folder"
uv run --all-extras python scripts/ab_figures.py "$folder"
