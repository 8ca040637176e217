#!/usr/bin/env bash
# Train the arms on a data set, evaluate them side by side, and write the report:
#
#   scripts/ab_eval.sh DATASET STEPS N      e.g. scripts/ab_eval.sh synthetic 200 300
#
# N is the number of test examples. Everything lands in runs/ab-DATASET/ and runs/ab-DATASET-ARM/. Settings from outside:
#
#   ARMS   arms, with spaces between them: base, grpo_REWARD for a reward of `rlcd-lite train`, grpo_REWARD_dec with decoupled advantages
#   MODEL  the model (default: that of rlcd-lite)
#
# An arm that is trained already, and a table that is made already, is used again.
set -euo pipefail
cd "$(dirname "$0")/.."

if [ $# -ne 3 ]; then
  echo "usage: scripts/ab_eval.sh DATASET STEPS N" >&2
  exit 2
fi
dataset=$1 steps=$2 n=$3
read -ra arms <<<"${ARMS:-base grpo_rlcr grpo_brier grpo_brier_dec grpo_binary}"
model=(${MODEL:+--model "$MODEL"})  # below in a form that old versions of bash take when it is empty
set=${dataset//[^A-Za-z0-9._-]/_}

evaluated=()
for arm in "${arms[@]}"; do
  if [ "$arm" = base ]; then
    evaluated+=(base)
    continue
  fi
  if ! uv run --all-extras rlcd-lite --help 2>/dev/null | grep -q '• train '; then
    echo "error: arm '$arm' needs the command rlcd-lite train, which this version does not have: run with ARMS=base." >&2
    exit 2
  fi
  reward=${arm#grpo_}
  train=(--dataset "$dataset" --steps "$steps" --reward "${reward%_dec}" --run-name "ab-$set-$arm")
  [ "$reward" = "${reward%_dec}" ] || train+=(--decouple)
  [ -d "runs/ab-$set-$arm/adapter" ] || uv run --all-extras rlcd-lite train ${model[@]+"${model[@]}"} "${train[@]}"
  evaluated+=("runs/ab-$set-$arm")
done

uv run --all-extras rlcd-lite eval ${model[@]+"${model[@]}"} --arms "$(IFS=,; echo "${evaluated[*]}")" \
  --datasets "$dataset" --n "$n" --output "runs/ab-$set"
uv run --all-extras rlcd-lite report "runs/ab-$set"
