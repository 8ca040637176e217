#!/usr/bin/env bash
# Many options and their order, without training: the tables behind docs/options.md, then their summary. Resumable; some three hours
# on two cores for all of it, so name what to make (default: all): scripts/options_eval.sh banking77--verbatim-sum
set -euo pipefail
cd "$(dirname "$0")/.."
WANTED=" $* "

wanted() { [[ "$WANTED" == "  " || "$WANTED" == *" $1 "* ]]; }

evaluate() { # FOLDER DATASET FLAGS…
  local folder=$1 dataset=$2
  shift 2
  if wanted "$folder"; then
    uv run --all-extras rlcd-lite eval --model smollm2 --dtype bfloat16 --datasets "$dataset" --n 500 --output "results/options/$folder" "$@"
  fi
}

for set in boolq mmlu arc:easy; do
  if wanted "${set/:/-}--orders"; then uv run --all-extras python scripts/options_orders.py results/options "$set"; fi
  few=(--layout context-first --calibration-n 100 --scoring verbatim)
  evaluate "${set/:/-}--verbatim-cf" "$set" "${few[@]}"
  evaluate "${set/:/-}--verbatim-constrained" "$set" "${few[@]}" --readout constrained
done
evaluate clinc150-none--verbatim-sum clinc150:none --calibration-n 200 --scoring verbatim --prior none
evaluate banking77--verbatim-sum banking77 --calibration-n 200 --scoring verbatim --prior none
for set in banking77 clinc150; do
  evaluate "$set--verbatim-constrained" "$set" --calibration-n 100 --scoring verbatim --readout constrained
  evaluate "$set--tournament" "$set" --calibration-n 100 --scoring tournament
  for k in 1 4 8; do
    evaluate "$set--labels-$k" "$set" --calibration-n 100 --permutations "$k"
  done
done
evaluate clinc150-hierarchy--labels-1 clinc150:hierarchy --calibration-n 100
uv run --all-extras python scripts/options_table.py results/options
