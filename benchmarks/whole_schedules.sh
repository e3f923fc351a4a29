#!/usr/bin/env bash
# Variants of a config over its whole schedule (whole_schedules.md), compared on the validation text.
# From the top of a clone; two runs at once, with one thread each. A run that is finished or half
# done goes on where it was.
#   usage: bash benchmarks/whole_schedules.sh CONFIG FOLDER SEED VARIANT...
# A variant is "default", or overrides with spaces between: "training.weight_decay=0.3 model.dropout=0.2"
set -euo pipefail
config=$1 folder=$2 seed=$3
shift 3
export OMP_NUM_THREADS=1 MKL_NUM_THREADS=1
mkdir -p "$folder"

train() { # variant
  local name="${1// /_}-$seed" overrides=() override
  for override in ${1/#default/}; do overrides+=(--set "$override"); done
  seq2seq train "$config" --run-dir "$folder/$name" --set training.processes=1 \
    --set training.seed="$seed" "${overrides[@]}" > "$folder/$name.log" 2>&1
  echo "$name: $(sed -n 's/^search: //p' "$folder/$name.log")"
}

for variant in "$@"; do
  while [ "$(jobs -rp | wc -l)" -ge 2 ]; do wait -n; done
  train "$variant" &
done
wait
