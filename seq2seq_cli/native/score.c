/* Scores of given translations by teacher forcing: all target positions in one pass. */

#include <stdlib.h>

#include "kernels.h"
#include "pass.h"
#include "threads.h"

/* A pass over the target positions of all sentences, one after the other; as in an encoder, a row
   knows its sentence and its position there. */
typedef struct {
    const Pass *pass;
    const Batch *batch; /* the sources */
    long layer;
    float *attention; /* see Targets; NULL: in this layer it is not asked for */
} Attention;

static void attend_to_own_past(void *context, long first, long last, int thread)
{
    const Attention *a = context;
    const Pass *p = a->pass;
    long d = p->stack->d_model;
    const float **keys = keys_of(p, thread);
    for (long row = first; row < last; row++) {
        long count = p->places[row] + 1, start = row + 1 - count;
        for (long i = 0; i < count; i++)
            keys[i] = p->wide + (start + i) * 3 * d + d;
        attend(p, count, p->wide + row * 3 * d, row, thread);
    }
}

/* attend, head by head, which adds up the weights. */
static void attend_and_record(const Pass *p, long count, const float *q, long row, int thread,
                              float *weights)
{
    long d = p->stack->d_model, heads = p->stack->heads, size = d / heads;
    const float **keys = keys_of(p, thread);
    float *scores = p->scores + thread * (p->longest + LANES);
    memset(weights, 0, count * sizeof *weights);
    for (long start = 0; start < d; start += size) {
        kernels->attend(size, count, keys, d, q + start, scores, p->heads + row * d + start);
        for (long i = 0; i < count; i++) {
            weights[i] += scores[i] / heads;
            keys[i] += size;
        }
    }
}

static void attend_to_own_source(void *context, long first, long last, int thread)
{
    const Attention *a = context;
    const Pass *p = a->pass;
    const Batch *b = a->batch;
    long d = p->stack->d_model;
    const float **keys = keys_of(p, thread);
    for (long row = first; row < last; row++) {
        long sentence = p->sentences[row], start = b->starts[sentence];
        long count = b->lengths[sentence];
        float *query = p->wide + row * d;
        if (p->stack->rotates_memory)
            rotate(p, p->places[row], query, d);
        for (long i = 0; i < count; i++)
            keys[i] = b->memory + ((start + i) * p->stack->num_layers + a->layer) * 2 * d;
        if (a->attention)
            attend_and_record(p, count, query, row, thread, a->attention + row * b->longest);
        else
            attend(p, count, query, row, thread);
    }
}

/* A layer of the decoder for all positions at once. */
static void score_layer(const Pass *p, Attention a)
{
    long d = p->stack->d_model;
    const Layer *layer = p->stack->layers + a.layer;
    apply(p, &layer->qkv, NONE, input(p, &layer->self_attention_norm), p->wide);
    if (p->stack->is_rotary)
        for (long r = 0; r < p->rows; r++)
            rotate(p, p->places[r], p->wide + r * 3 * d, 2 * d);
    parallel(p->in_attention, p->rows, attend_to_own_past, &a);
    add_to_states(p, &layer->out, p->heads, &layer->self_attention_norm);
    apply(p, &layer->query, NONE, input(p, &layer->cross_attention_norm), p->wide);
    parallel(p->in_attention, p->rows, attend_to_own_source, &a);
    add_to_states(p, &layer->cross_out, p->heads, &layer->cross_attention_norm);
    feed_forward(p, layer);
}

/* Each position gets the token before its own, and `expected` its own; the first token is `begin`. */
static void embed_targets(const Pass *p, const Targets *t, long sentences, int64_t *expected)
{
    long row = 0;
    for (long sentence = 0; sentence < sentences; sentence++)
        for (long i = 0; i < t->longest; i++) {
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
    for (long start = 0; start < p->rows; start += CHUNK) {
        long rows = p->rows - start < CHUNK ? p->rows - start : CHUNK;
        linear(output, NONE, rows, p->states + start * output->inputs, NULL, logits, p->q,
               p->threads);
        log_sum_exp(rows, output->outputs, logits, log_probs + start, p->threads);
        for (long r = 0; r < rows; r++)
            log_probs[start + r] = logits[r * output->outputs + expected[start + r]] -
                                   log_probs[start + r];
    }
}

int score(const Stack *encoder, const Stack *decoder, const float *positions,
          const Sources *sources, const Targets *targets, int threads)
{
    long longest = sources->longest > targets->longest ? sources->longest : targets->longest;
    long encoding = workspace_size(encoder, sources->rows, sources->longest, threads);
    long decoding = workspace_size(decoder, targets->rows, longest, threads);
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
        long aligning = decoder->num_layers > 1 ? decoder->num_layers - 2 : 0;
        for (long n = 0; n < decoder->num_layers; n++)
            score_layer(&p, (Attention){&p, &b, n, n == aligning ? targets->attention : NULL});
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
