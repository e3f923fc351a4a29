#!/usr/bin/env bash
# The runs of translation_quality.md on the text of the literature (data/multi30k/lc.norm.tok).
# From the top of a clone; two runs at once, with one thread each. A run that is finished or half done
# goes on where it was.
#   usage: bash benchmarks/translation_quality.sh plain SEED...        the config
#          bash benchmarks/translation_quality.sh reverse SEED...      models of the other direction
#          bash benchmarks/translation_quality.sh diversified SEED...  on the text and the translations
#                                                                      of all models of the others
#          bash benchmarks/translation_quality.sh tuned SEED...        these, with less dropout
set -euo pipefail
what=$1
shift
config=benchmarks/multi30k_literature.yaml
text=data/multi30k/lc.norm.tok
runs=runs/literature
export OMP_NUM_THREADS=1 MKL_NUM_THREADS=1
mkdir -p "$runs"

train() { # name of the run, seed, options
  local run="$runs/$1-$2" seed=$2
  shift 2
  seq2seq train "$config" --run-dir "$run" --set training.seed="$seed" "$@" > "$run.log" 2>&1
}

score() { # run
  local test="$text/test_2016_flickr"
  for beam in 1 5; do
    seq2seq eval "$1" --src "$test.en" --ref "$test.de" --set decoding.beam_size=$beam \
      --metrics bleu 2>&1 | sed -n "s|^bleu|$1, beam $beam:|p"
  done
}

plain() { # seed
  train plain "$1"
  score "$runs/plain-$1"
  seq2seq translate "$runs/plain-$1" --beam-size 5 \
    --input "$text/train.en" --output "$runs/forward-$1.de" 2> /dev/null
}

reverse() { # seed
  train reverse "$1" --set data.direction=reverse --set training.max_steps=2000
  seq2seq translate "$runs/reverse-$1" --beam-size 5 \
    --input "$text/train.de" --output "$runs/backward-$1.en" 2> /dev/null
}

corpora() {
  local file
  echo "{src: $text/train.en, tgt: $text/train.de}"
  for file in "$runs"/forward-*.de; do echo ", {src: $text/train.en, tgt: $file}"; done
  for file in "$runs"/backward-*.en; do echo ", {src: $file, tgt: $text/train.de}"; done
}

diversified() { # seed
  train diversified "$1" --set "data.train=[$(corpora)]" --set training.max_steps=6000
  score "$runs/diversified-$1"
}

tuned() { # seed
  train tuned "$1" --from "$runs/diversified-$1" --set "data.train=[$(corpora)]" \
    --set training.max_steps=3000 --set training.warmup_steps=100 --set training.lr=1e-2 \
    --set model.dropout=0.2
  score "$runs/tuned-$1"
}

fewer_jobs_than() {
  while [ "$(jobs -rp | wc -l)" -ge "$1" ]; do wait -n; done
}

for seed in "$@"; do
  fewer_jobs_than 2
  "$what" "$seed" &
done
fewer_jobs_than 1
