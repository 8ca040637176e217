#!/usr/bin/env bash
# The untrained embedded model on every set that the seed reports: the tables behind results/base and the README. Resumable; about a
# quarter of an hour on two cores. Needs RLCD_DATA_DIR, or the hub.
set -euo pipefail
cd "$(dirname "$0")/.."

evaluate() { # OUTPUT DATASETS N CALIBRATION_N
  uv run --all-extras rlcd-lite eval --model smollm2 --arms base --datasets "$2" --n "$3" --calibration-n "$4" \
    --permutation-k 4 --permutation-n 50 --output "results/base/$1"
}

evaluate synthetic synthetic 600 200
evaluate public boolq,mmlu,banking77,clinc150 200 100
