#!/usr/bin/env bash
# Train the shipped configs one after another and score them on held-out text (real_text.md).
# From the top of a clone, on an otherwise idle machine; Multi30k only if data/multi30k is there.
#   usage: bash benchmarks/real_text.sh [FOLDER FOR THE RUNS]
set -euo pipefail
runs=${1:-runs/real_text}

measure() { # name, then the test text as eval takes it
  local name=$1 start=$SECONDS
  shift
  seq2seq train "configs/$name.yaml" --run-dir "$runs/$name"
  echo "$name: trained in $((SECONDS - start)) s"
  seq2seq eval "$runs/$name" "$@"
}

measure beer --src data/beer/train.de --ref data/beer/train.en
measure quickstart --src data/quickstart/test.de --ref data/quickstart/test.en
measure kana --pairs data/kana/test.tsv
if [ -d data/multi30k ]; then
  test=data/multi30k/test_2016_flickr
  measure multi30k_en_de --src "$test.en" --ref "$test.de"
fi
