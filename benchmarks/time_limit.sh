#!/bin/sh
# A run with a time limit, and one of as many updates that were known from the start.
# usage: benchmarks/time_limit.sh HOURS SEED  (from the root of a clone; the text is the quickstart's)
set -eu
hours=$1 seed=$2 runs=$(mktemp -d)
text="data: {train: {src: data/quickstart/train.de, tgt: data/quickstart/train.en}, \
valid: {src: data/quickstart/valid.de, tgt: data/quickstart/valid.en}}"
end="validation: {every: 100000, unit: steps, metric: exact_match}"
printf '%s\n%s\n' "$text" "$end" > "$runs/small.yaml"
train() {
    name=$1
    shift
    seq2seq train "$runs/small.yaml" --run-dir "$runs/$name" --set training.seed="$seed" "$@" 2>&1 | tail -n 1
}
train limited --set training.max_hours="$hours"
steps=$(sed -n 's/.*finished after \([0-9,]*\) update.*/\1/p' "$runs/limited/train.log" | tr -d ,)
train known --set training.max_steps="$steps" --set training.warmup_steps=$((steps / 10))
