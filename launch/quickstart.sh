#!/usr/bin/env bash
# Trains a small GPT on this machine's CPUs: 4 ranks, Hanayo with 2 waves, real text.
#
#   launch/quickstart.sh [more Megatron arguments]
#
# Installs what is missing (see launch/environment.sh), builds a corpus from the sources of Python's
# standard library, trains, and fails if the loss did not fall. Everything it writes is in
# quickstart/ of the checkout, or in $HANAYO_QUICKSTART.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

prepare_environment
folder=${HANAYO_QUICKSTART:-$ROOT/quickstart}
corpus=$folder/corpus
log=$folder/training.log
mkdir -p "$folder"

if [[ ! -e $corpus.idx ]]; then
    note "Building the corpus $corpus"
    "$PYTHON" -m hanayo_megatron.corpus --output "$corpus" >"$log" 2>&1 ||
        fail "the corpus could not be built: $(tail -n 5 "$log")"
fi

arguments=(
    --cpu
    --pipeline-model-parallel-size 4
    --pipeline-schedule hanayo --num-waves 2
    --num-layers 16 --hidden-size 64 --num-attention-heads 4
    --seq-length 64 --max-position-embeddings 64
    --position-embedding-type rope --normalization RMSNorm --swiglu --disable-bias-linear
    --micro-batch-size 2 --global-batch-size 16
    --train-iters 50 --lr 2e-3 --lr-decay-style constant
    --data-path "$corpus" --data-cache-path "$folder/index" --split 98,2,0
    --tokenizer-type NullTokenizer --vocab-size 256
    --log-interval 5 --eval-interval 1000 --eval-iters 2
    --num-workers 0
)

note "Training on 4 CPU processes; the whole output is in $log"
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
# Megatron's lines, made short; the exit status is that of the training.
"$PYTHON" -m torch.distributed.run --standalone --local-addr 127.0.0.1 --nproc-per-node 4 \
    -m hanayo_megatron.pretrain_gpt "${arguments[@]}" "$@" 2>&1 | tee "$log" |
    sed -un 's/.* iteration \+\([0-9]*\)\/ *\([0-9]*\) |.* lm loss: \([^ ]*\) .*/iteration \1 of \2: loss \3/p' ||
    fail "the training failed, see $log." \
        "$(grep -v ChildFailedError "$log" | grep -m 1 -E 'hanayo_megatron: error|\.py: error: |Error: ' ||
            tail -n 20 "$log")"

losses=$(sed -n 's/.* iteration .* lm loss: \([^ ]*\) .*/\1/p' "$log")
awk 'NR == 1 { first = $1 } { last = $1 }
    END {
        if (NR < 2) { print "error: fewer than two losses were logged"; exit 1 }
        if (last >= first) { printf "error: the loss did not fall: %.3f, then %.3f\n", first, last; exit 1 }
        printf "The loss fell from %.3f to %.3f.\n", first, last
    }' <<<"$losses"
