#!/bin/sh
# Trains variants of configs/g2p.yaml on LANG.train.tsv of the folder DATA (SIGMORPHON 2021, task 1), and prints
# the word error rates of greedy search on LANG.dev.tsv and LANG.test.tsv:
#     sh benchmarks/pronunciation.sh DATA LANG FOLDER VARIANT...
set -e
data=$1 language=$2 folder=$3 threads=1
shift 3

train() {
    name=$1
    shift
    OMP_NUM_THREADS=$threads seq2seq train configs/g2p.yaml --run-dir "$folder/$language-$name" \
        --set data.train.pairs="$data/$language.train.tsv" --set data.valid.pairs="$data/$language.dev.tsv" \
        --set training.processes=1 --set training.max_steps=2000 --set model.dropout=0.3 \
        --set training.weight_decay=0.1 --set validation.every=250 "$@"
    for part in dev test; do
        printf '%s %s %s ' "$language" "$name" $part
        seq2seq eval "$folder/$language-$name" --pairs "$data/$language.$part.tsv" --metrics exact_match_error | grep '^exact_match_error'
    done
}

for variant in "$@"; do
    case $variant in
    default) train default ;;
    composed) train composed --set tokenizer.normalization=identity --set validation.keep_best=5 ;;
    dropout) train dropout --set model.dropout=0.4 --set training.ema_decay=0.999 --set validation.every=200 \
        --set validation.keep_best=5 ;;
    r_drop) train r_drop --set 'training.consistency={kind: r_drop}' --set training.max_steps=1200 \
        --set validation.every=200 --set validation.keep_best=5 ;;
    small_batches) train small_batches --set training.tokens_per_batch=1024 --set training.max_steps=4000 \
        --set training.warmup_steps=160 --set training.lr=1e-2 --set validation.every=400 \
        --set validation.keep_best=5 ;;
    subwords) train subwords --set 'tokenizer.kind={src: bpe, tgt: word}' \
        --set 'tokenizer.vocab_size={src: 1000, tgt: auto}' --set 'training.subword_sampling={src: 0.2}' \
        --set validation.keep_best=5 ;;
    long) train long --set training.max_steps=4000 --set validation.every=400 --set validation.keep_best=5 ;;
    long_subwords) train long_subwords --set 'tokenizer.kind={src: bpe, tgt: word}' \
        --set 'tokenizer.vocab_size={src: 1000, tgt: auto}' --set 'training.subword_sampling={src: 0.2}' \
        --set training.max_steps=4000 --set validation.every=400 --set validation.keep_best=5 ;;
    rotary_cross) train rotary_cross --set model.rotary_cross_attention=true --set training.max_steps=4000 \
        --set validation.every=400 --set validation.keep_best=5 ;;
    wide) train wide --set model.d_model=256 --set model.d_ff=1024 --set training.max_steps=3000 \
        --set validation.every=300 --set validation.keep_best=5 ;;
    long_r_drop) train long_r_drop --set 'training.consistency={kind: r_drop}' --set training.max_steps=2000 \
        --set validation.every=200 --set validation.keep_best=5 ;;
    ensemble)
        threads=$(nproc)  # one for each member
        train ensemble --ensemble 6 --set model.rotary_cross_attention=true --set model.dropout=0.15 \
            --set training.max_steps=1000 ;;
    *) echo "there is no variant $variant" >&2; exit 2 ;;
    esac
done
