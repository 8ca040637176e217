#!/usr/bin/env bash
# Train the arms on a data set, evaluate them side by side, and write the report:
#
#   scripts/ab_eval.sh DATASET STEPS N      e.g. scripts/ab_eval.sh synthetic 200 300
#
# N is the number of test examples. Everything lands in runs/ab-DATASET/ and runs/ab-DATASET-ARM/. Settings from outside:
#
#   ARMS   arms, with spaces between them: base, or the name of a file of configs/ without its ending
#   MODEL  the model (default: that of rlcd-lite)
#   TRAIN  further flags of `rlcd-lite train` for every arm, such as "--seed 1 --precision bf16"
#
# An arm that was interrupted goes on; one that is trained already, and a table that is made already, is used again.
set -euo pipefail
cd "$(dirname "$0")/.."

if [ $# -ne 3 ]; then
  echo "usage: scripts/ab_eval.sh DATASET STEPS N" >&2
  exit 2
fi
dataset=$1 steps=$2 n=$3
read -ra arms <<<"${ARMS:-base grpo_rlcr grpo_brier grpo_brier_dec grpo_binary}"
read -ra train <<<"${TRAIN:-}"
model=(${MODEL:+--model "$MODEL"})  # below in a form that old versions of bash take when it is empty
set=${dataset//[^A-Za-z0-9._-]/_}

evaluated=()
for arm in "${arms[@]}"; do
  if [ "$arm" = base ]; then
    evaluated+=(base)
    continue
  fi
  if [ ! -f "configs/$arm.yaml" ]; then
    echo "error: arm '$arm' is neither base nor one of: $(cd configs && echo *.yaml | sed 's/\.yaml//g')." >&2
    exit 2
  fi
  run=ab-$set-$arm
  if [ ! -d "runs/$run/adapter" ]; then
    resume=()
    [ ! -f "runs/$run/config.json" ] || resume=(--resume)
    uv run --all-extras rlcd-lite train ${model[@]+"${model[@]}"} --config "configs/$arm.yaml" --dataset "$dataset" --steps "$steps" \
      --run-name "$run" ${train[@]+"${train[@]}"} ${resume[@]+"${resume[@]}"}
  fi
  evaluated+=("runs/$run")
done

uv run --all-extras rlcd-lite eval ${model[@]+"${model[@]}"} --arms "$(IFS=,; echo "${evaluated[*]}")" \
  --datasets "$dataset" --n "$n" --output "runs/ab-$set"
uv run --all-extras rlcd-lite report "runs/ab-$set"
