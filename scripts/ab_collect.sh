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
for seed in runs/ab-"$dataset"-[0-9]*; do
  to="$folder/seed-${seed##*-}"
  mkdir -p "$to/decisions"
  cp "$seed/eval.json" "$to/"
  cp "$seed"/decisions/* "$to/decisions/"
done
for run in runs/ab-"$dataset"-*_*-[0-9]*; do
  name=${run#runs/ab-"$dataset"-}
  mkdir -p "$folder/runs/$name"
  cp "$run/config.json" "$folder/runs/$name/"
  [ ! -f "$run/evals.jsonl" ] || cp "$run/evals.jsonl" "$folder/runs/$name/"
  gzip -n -c "$run/metrics.jsonl" >"$folder/runs/$name/metrics.jsonl.gz"
done
uv run --all-extras python scripts/ab_table.py "$folder"
uv run --all-extras python scripts/ab_figures.py "$folder"
