#!/usr/bin/env bash
# A chain on real text: a teacher, exported and imported again, fine-tuned on a domain, distilled into a
# student, and the same student on the original pairs; scores and speed of all at the end.
# From the top of a clone, on an otherwise idle machine. Every step that is finished is left as it is.
#   usage: bash benchmarks/distillation.sh TEACHER.yaml GENERAL DOMAIN SRC TGT MONO [FOLDER FOR THE RUNS]
#          TEACHER.yaml  config of the teacher, trained on GENERAL
#          GENERAL       prefix of train.SRC, train.TGT, valid.SRC, ...: text/general/
#          DOMAIN        prefix of the same files of a domain that GENERAL leaves out
#          SRC, TGT      their extensions: de en
#          MONO          text of the domain in the source language
#   SHAPE=6+2x192 bash benchmarks/distillation.sh ...   another student
#   STUDENT='training.max_steps=3000 ...'               its options
set -euo pipefail
config=$1 general=$2 domain=$3 src=$4 tgt=$5 mono=$6 runs=${7:-runs/distillation}
shape=${SHAPE:-tiny}
read -ra options <<< "${STUDENT:-}"
mkdir -p "$runs"

score() { # run
  for text in "$general" "$domain"; do
    echo "$1 on ${text}test"
    seq2seq eval "$1" --src "${text}test.$src" --ref "${text}test.$tgt" --metrics bleu,chrf
  done
}

teacher=$runs/teacher imported=$runs/imported tuned=$runs/tuned student=$runs/student
seq2seq train "$config" --run-dir "$teacher"
[ -d "$runs/huggingface" ] ||
  seq2seq export "$teacher" --format huggingface --output "$runs/huggingface" --langs "$src-$tgt"
[ -d "$imported" ] || seq2seq import "$runs/huggingface" "$imported"
score "$imported"

[ -d "$tuned" ] || cat > "$runs/tuned.yaml" << END
data:
  train:
    - {src: ${domain}train.$src, tgt: ${domain}train.$tgt, weight: 2}
    - {src: ${general}train.$src, tgt: ${general}train.$tgt, weight: ${MIX:-0.15}}
  valid: {src: ${domain}valid.$src, tgt: ${domain}valid.$tgt}
  general: {src: ${general}valid.$src, tgt: ${general}valid.$tgt}
training: {max_epochs: 3, lr: ${TUNING_LR:-5e-4}}
END
seq2seq train "$runs/tuned.yaml" --run-dir "$tuned" --from "$imported"
score "$tuned"

for side in "$src" "$tgt"; do cat "${general}valid.$side" "${domain}valid.$side" > "$runs/valid.$side"; done
seq2seq distill "$tuned" --src "$mono" --output "$student" --shape "$shape" --beam-size "${BEAM:-5}" \
  --valid "$runs/valid.$src" --valid "$runs/valid.$tgt" "${options[@]/#/--set=}"
score "$student"

# The same student, for as many updates, on the original pairs alone.
original="[{src: ${general}train.$src, tgt: ${general}train.$tgt}, {src: ${domain}train.$src, tgt: ${domain}train.$tgt}]"
seq2seq train "$student/distilled/student.yaml" --run-dir "$runs/original" \
  --set "data.train=$original" "${options[@]/#/--set=}"
score "$runs/original"

for text in "$general" "$domain"; do
  seq2seq compare "$tuned" "$student" "$runs/original" \
    --src "${text}test.$src" --ref "${text}test.$tgt" --metrics bleu,chrf --test bootstrap
done
for run in "$tuned" "$student"; do
  echo "$run"
  seq2seq bench translate "$run" --input "${domain}test.$src"
  seq2seq bench translate "$run" --input "${domain}test.$src" --set decoding.beam_size=1
done
