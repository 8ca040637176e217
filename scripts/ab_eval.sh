#!/usr/bin/env bash
# Train the arms on a data set from one warm start, evaluate them side by side, and write the report:
#
#   scripts/ab_eval.sh DATASET STEPS N      e.g. scripts/ab_eval.sh synthetic 60 300
#
# N is the number of test examples. For every seed S the arms land in runs/ab-DATASET-ARM-S/, each with its evaluation (table,
# eval.json) in eval/, and the report on them in runs/ab-DATASET-S/; the untrained base is evaluated once, in
# runs/ab-DATASET-base/eval/. The warm start is a supervised run, and every arm of a seed goes on from its adapter
# with the same tickets in the same order, so that arms differ in nothing but their objective.
# Settings from outside:
#
#   ARMS   arms, with spaces between them: base, or the name of a file of configs/ without its ending
#   SEEDS  seeds, with spaces between them (default: 0)
#   MODEL  the model (default: that of rlcd-lite)
#   WARM   steps of the warm start (default: those of its config); 0 leaves it out
#   START  the warm start's config (default: configs/warm_up.yaml)
#   TRAIN  further flags of `rlcd-lite train` for every arm, such as "--precision bf16"
#   EVAL   further flags of `rlcd-lite eval`, such as "--calibration-n 300"
#
# An arm is evaluated as soon as it is trained. One that was interrupted goes on; one that is trained already, and a table that is
# made already, is used again.
set -euo pipefail
cd "$(dirname "$0")/.."

if [ $# -ne 3 ]; then
  echo "usage: scripts/ab_eval.sh DATASET STEPS N" >&2
  exit 2
fi
dataset=$1 steps=$2 n=$3
read -ra arms <<<"${ARMS:-base grpo_rlcr grpo_brier grpo_brier_dec grpo_binary}"
read -ra seeds <<<"${SEEDS:-0}"
read -ra train <<<"${TRAIN:-}"
read -ra measure <<<"${EVAL:-}"
model=(${MODEL:+--model "$MODEL"})  # below in a form that old versions of bash take when it is empty
set=${dataset//[^A-Za-z0-9._-]/_}

evaluate_arm() {  # ARM FOLDER: evaluates base, or the run of that folder, in FOLDER/eval, and adds it to the report
  uv run --all-extras rlcd-lite eval ${model[@]+"${model[@]}"} --arms "$1" --datasets "$dataset" --n "$n" --output "$2/eval" \
    ${measure[@]+"${measure[@]}"}
  evaluated+=("$2/eval")
}

train_arm() {  # NAME FLAG…: trains the run of that name, or goes on with it, unless it is done
  local run=$1 resume=()
  shift
  [ ! -d "runs/$run/adapter" ] || return 0
  [ ! -f "runs/$run/config.json" ] || resume=(--resume)
  uv run --all-extras rlcd-lite train ${model[@]+"${model[@]}"} "$@" --dataset "$dataset" --run-name "$run" \
    ${train[@]+"${train[@]}"} ${resume[@]+"${resume[@]}"}
}

for arm in "${arms[@]}"; do
  if [ "$arm" != base ] && [ ! -f "configs/$arm.yaml" ]; then
    echo "error: arm '$arm' is neither base nor one of: $(cd configs && echo *.yaml | sed 's/\.yaml//g')." >&2
    exit 2
  fi
done

for seed in "${seeds[@]}"; do
  start=() evaluated=()
  if [ "${WARM:-}" != 0 ] && [ "${arms[*]}" != base ]; then
    warm=runs/ab-$set-warm_up-$seed
    train_arm "ab-$set-warm_up-$seed" --config "${START:-configs/warm_up.yaml}" ${WARM:+--steps "$WARM"} --seed "$seed"
    evaluate_arm "$warm" "$warm"
    start=(--adapter "$warm/adapter")
  fi
  for arm in "${arms[@]}"; do
    if [ "$arm" = base ]; then
      evaluate_arm base "runs/ab-$set-base"
      continue
    fi
    run=runs/ab-$set-$arm-$seed
    # another seed: other tickets than those of the warm start
    train_arm "ab-$set-$arm-$seed" --config "configs/$arm.yaml" --steps "$steps" --seed "$((100 + seed))" \
      ${start[@]+"${start[@]}"}
    evaluate_arm "$run" "$run"
  done
  uv run --all-extras rlcd-lite report "${evaluated[@]}" --output "runs/ab-$set-$seed"
done
echo "ab_eval: $SECONDS s in all" >&2
