#!/usr/bin/env bash
# Many options and their order, without training: the tables behind docs/options.md, then their summary. Resumable; hours on two cores
# for all of it, so name the folders to make (default: all), such as: scripts/options_eval.sh banking77--verbatim-sum
set -euo pipefail
cd "$(dirname "$0")/.."
WANTED=" $* "

evaluate() { # FOLDER DATASET FLAGS…
  local folder=$1 dataset=$2
  shift 2
  if [[ "$WANTED" != "  " && "$WANTED" != *" $folder "* ]]; then return; fi
  uv run --all-extras rlcd-lite eval --model smollm2 --dtype bfloat16 --datasets "$dataset" --n 500 --output "results/options/$folder" "$@"
}

few=(--layout context-first --calibration-n 100)
orders=(--permutation-k 1 --permutation-n 200)
for set in boolq mmlu arc:easy; do
  for k in 1 4 8; do
    evaluate "${set/:/-}--labels-$k" "$set" "${few[@]}" "${orders[@]}" --permutations "$k"
  done
  evaluate "${set/:/-}--labels-auto" "$set" "${few[@]}" --permutations auto
  evaluate "${set/:/-}--verbatim-cf" "$set" "${few[@]}" --scoring verbatim
  evaluate "${set/:/-}--verbatim-constrained" "$set" "${few[@]}" --scoring verbatim --readout constrained
done
for set in banking77 clinc150; do
  evaluate "$set--verbatim-sum" "$set" --calibration-n 200 --scoring verbatim --prior none
  evaluate "$set--verbatim-constrained" "$set" --calibration-n 100 --scoring verbatim --readout constrained
  for k in 1 4; do
    evaluate "$set--labels-$k" "$set" --calibration-n 100 --permutations "$k"
  done
  evaluate "$set--tournament" "$set" --calibration-n 100 --scoring tournament
done
evaluate clinc150-none--verbatim-sum clinc150:none --calibration-n 200 --scoring verbatim --prior none
evaluate clinc150-hierarchy--labels-1 clinc150:hierarchy --calibration-n 100
uv run --all-extras python scripts/options_table.py results/options
