/* Scores of given translations by teacher forcing: all target positions in one pass. */

#include <stdlib.h>

#include "kernels.h"
#include "pass.h"

/* A pass over the target positions of all sentences, one after the other. */
static void attend_to_own_past(void *context, int64_t first, int64_t last, int thread)
{
    const Attention *a = context;
    const Pass *p = a->pass;
    int64_t d = p->stack->d_model;
    const void **keys = keys_of(p, thread);
    for (int64_t row = first; row < last; row++) {
        int64_t count = p->places[row] + 1, start = row + 1 - count;
        for (int64_t i = 0; i < count; i++)
            keys[i] = own_key(p, start + i);
        attend(p, count, p->wide + row * 3 * d, row, thread, NULL);
    }
}

/* Each position gets the token before its own, and `expected` its own; the first token is `begin`. */
static void embed_targets(const Pass *p, const Targets *t, int64_t sentences, int64_t *expected)
{
    int64_t row = 0;
    for (int64_t sentence = 0; sentence < sentences; sentence++)
        for (int64_t i = 0; i < t->longest; i++) {
            int64_t id = t->ids[sentence * t->longest + i];
            if (id == t->pad)
                break;
            p->sentences[row] = sentence;
            p->places[row] = i;
            embed(p, row, i ? expected[row - 1] : t->begin, i);
            expected[row++] = id;
        }
}

/* The logits of all positions never exist at once. */
static void score_tokens(const Pass *p, const int64_t *expected, float *logits, float *log_probs)
{
    const Linear *output = &p->stack->output;
    layer_norm(p, &p->stack->norm, p->states);
    for (int64_t start = 0; start < p->rows; start += CHUNK) {
        int64_t rows = p->rows - start < CHUNK ? p->rows - start : CHUNK;
        linear(output, NONE, rows, p->states + start * output->inputs, NULL, logits, p->q,
               p->threads);
        log_sum_exp(rows, output->outputs, logits, log_probs + start, p->threads);
        for (int64_t r = 0; r < rows; r++)
            log_probs[start + r] = logits[r * output->outputs + expected[start + r]] -
                                   log_probs[start + r];
    }
}

int score(const Stack *encoder, const Stack *decoder, const float *positions,
          const Sources *sources, const Targets *targets, int threads)
{
    int64_t longest = sources->longest > targets->longest ? sources->longest : targets->longest;
    int64_t encoding = workspace_size(encoder, sources->rows, sources->longest, threads);
    int64_t decoding = workspace_size(decoder, targets->rows, longest, threads);
    void *workspace = malloc(encoding > decoding ? encoding : decoding);
    float *memory = malloc(sources->rows * encoder->output.outputs * sizeof *memory);
    float *logits = malloc(CHUNK * decoder->output.outputs * sizeof *logits);
    int64_t *expected = malloc(targets->rows * sizeof *expected);
    int32_t *places = malloc(2 * sources->count * sizeof *places);
    int status = NO_MEMORY;
    if (workspace && memory && logits && expected && places) {
        Batch b = {.sentences = sources->count, .longest = sources->longest, .starts = places,
                   .lengths = places + sources->count, .memory = memory};
        encode(encoder, &b, sources->rows, sources->ids, targets->pad, sources->places, positions,
               workspace, threads);
        Pass p = begin(decoder, positions, targets->rows, longest, workspace, threads);
        embed_targets(&p, targets, sources->count, expected);
        int64_t aligning = decoder->num_layers > 1 ? decoder->num_layers - 2 : 0;
        for (int64_t n = 0; n < decoder->num_layers; n++)
            decoder_layer(&(Attention){&p, &b, n, n == aligning ? targets->attention : NULL},
                          attend_to_own_past);
        score_tokens(&p, expected, logits, targets->log_probs);
        status = COMPLETED;
    }
    free(workspace);
    free(memory);
    free(logits);
    free(expected);
    free(places);
    return status;
}
