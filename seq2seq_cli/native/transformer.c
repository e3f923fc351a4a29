/* The Transformer: encoding, and a step of decoding.

   Activations are rows, one for every position of a source or for every hypothesis, and the result
   of a row does not depend, to the last bit, on the other rows. Precisions differ in two
   things: the kernels of linear layers (kernels.h), and the type of keys and values. */

#include "kernels.h"
#include "pass.h"
#include "threads.h"

/* Work, in words of weights times rows, each of some 10 ps. Reading a weight costs as much as
   multiplying it with 13 rows, whatever the precision. */
enum {
    WORK_OF_READING = 13,
    WORK_OF_ATTENDING = 8,  /* for each number that attention reads */
    MANY_KEYS = 1 << 16,    /* numbers of all keys and values, which caches may no longer hold */
    LONG_HEAD = 1 << 12,    /* numbers of the keys of a head, with which caches are full */
    WORK_OF_RESULT = 32,    /* for each output of a norm, an exponential, a maximum */
    LOOP_THRESHOLD = 1 << 19, /* least work of a loop that pays for a second thread */
    PASS_THRESHOLD = 40 << 20, /* and of all loops of a pass: while a pass waits for a thread that
                                  another program keeps from running, a single thread would have
                                  finished many passes */
};

/* Words of a row of inputs: whole tiles, for AMX. */
static int64_t words_of(int precision, int64_t inputs)
{
    int64_t in_a_tile = precision == INT8 ? 4 * LANES : 2 * LANES;
    return precision == FP32 ? inputs : (inputs + in_a_tile - 1) / in_a_tile * LANES;
}

/* CHUNK rows at most of a linear layer. */
typedef struct {
    const Linear *layer;
    int activation;
    int64_t count, words;
    const float *x, *residual;
    float *y;
    void *q; /* inputs as words */
    float scale[CHUNK];
} Product;

static void convert(void *context, int64_t first, int64_t last, int thread)
{
    Product *p = context;
    int64_t inputs = p->layer->inputs;
    for (int64_t r = first; r < last; r++) {
        void *words = (int32_t *)p->q + r * p->words;
        if (p->layer->precision == INT8)
            kernels->quantize(inputs, p->words, p->x + r * inputs, words, p->scale + r);
        else
            kernels->round_to_bf16(inputs, p->words, p->x + r * inputs, words);
    }
}

static void multiply(void *context, int64_t first, int64_t last, int thread)
{
    enum { AT_ONCE = 8 };
    const Product *p = context;
    const Linear *l = p->layer;
    int is_int8 = l->precision == INT8;
    const void *numbers = l->precision == FP32 ? (const void *)p->x : p->q;
    Inputs x = {p->count, p->words, numbers, p->scale};
    Group groups[AT_ONCE];
    while (first < last) {
        int64_t count = last - first < AT_ONCE ? last - first : AT_ONCE;
        for (int64_t n = 0; n < count; n++) {
            int64_t o = (first + n) * GROUP;
            groups[n] = (Group){&x, l->weight + o * p->words, l->bias + o,
                                is_int8 ? l->scale + o : NULL, is_int8 ? l->shift + o : NULL,
                                l->precision, p->activation, l->outputs - o, l->outputs,
                                p->residual ? p->residual + o : NULL, p->y + o};
        }
        kernels->multiply(groups, count);
        first += count;
    }
}

static int64_t work_of(const Linear *layer, int64_t rows)
{
    return words_of(layer->precision, layer->inputs) * layer->outputs * (rows + WORK_OF_READING);
}

void linear(const Linear *layer, int activation, int64_t rows, const float *x,
            const float *residual, float *y, void *q, int threads)
{
    int64_t groups = (layer->outputs + GROUP - 1) / GROUP;
    if (work_of(layer, rows) < LOOP_THRESHOLD)
        threads = 1;
    Product p = {layer, activation, 0, words_of(layer->precision, layer->inputs), x, residual, y, q,
                 {0}};
    for (int64_t done = 0; done < rows; done += p.count) {
        p.count = rows - done < CHUNK ? rows - done : CHUNK;
        if (layer->precision != FP32)
            parallel(threads, p.count, convert, &p);
        parallel(threads, groups, multiply, &p);
        p.x += p.count * layer->inputs;
        p.y += p.count * layer->outputs;
        if (residual)
            p.residual += p.count * layer->outputs;
    }
}

static int64_t most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* Words that the inputs of linear layers need. */
static int64_t words_for_inputs(const Stack *stack)
{
    int precision = stack->output.precision;
    int64_t widest = most(stack->d_model, stack->d_ff);
    return precision == FP32 ? 0 : CHUNK * words_of(precision, widest);
}

int64_t workspace_size(const Stack *stack, int64_t rows, int64_t longest, int threads)
{
    int64_t d = stack->d_model, of_row = 3 * d + most(3 * d, stack->d_ff) + 2;
    int64_t numbers = words_for_inputs(stack) + rows * of_row + threads * (longest + LANES);
    return numbers * sizeof(float) + threads * longest * sizeof(void *);
}

static int kv_type_of(const Stack *stack)
{
    return stack->output.precision == FP32 ? FP32 : BF16;
}

int64_t kv_size(const Stack *stack)
{
    return kv_type_of(stack) == FP32 ? sizeof(float) : sizeof(uint16_t);
}

static int64_t work_of_attention(const Stack *stack, int64_t rows, int64_t longest)
{
    return rows * longest * 2 * stack->d_model * WORK_OF_ATTENDING;
}

static int64_t work_of_pass(const Stack *stack, int64_t rows, int64_t longest)
{
    const Layer *l = stack->layers;
    const Linear *linears[] = {&l->qkv, &l->out, &l->query, &l->cross_out, &l->expand,
                               &l->contract};
    int64_t work = work_of_attention(stack, rows, longest);
    for (int n = 0; n < 6; n++)
        work += work_of(linears[n], rows);
    return stack->num_layers * work + work_of(&stack->output, rows);
}

Pass begin(const Stack *stack, const float *positions, int64_t rows, int64_t longest,
                  void *workspace, int threads)
{
    int64_t d = stack->d_model;
    const void **keys = workspace;
    float *words = (float *)(keys + threads * longest), *states = words + words_for_inputs(stack);
    float *normed = states + rows * d, *heads = normed + rows * d, *wide = heads + rows * d;
    float *scores = wide + rows * most(3 * d, stack->d_ff);
    int32_t *sentences = (int32_t *)(scores + threads * (longest + LANES));
    if (work_of_pass(stack, rows, longest) < PASS_THRESHOLD)
        threads = 1;
    int in_attention = work_of_attention(stack, rows, longest) < LOOP_THRESHOLD ? 1 : threads;
    return (Pass){stack, positions, rows, longest, threads, in_attention, kv_type_of(stack),
                  words, states, normed, heads, wide, keys, scores, sentences, sentences + rows};
}

void embed(const Pass *p, int64_t row, int64_t id, int64_t position)
{
    int64_t d = p->stack->d_model;
    int is_token = 0 <= id && id < p->stack->vocabulary;
    const float *vector = p->stack->embedding + (is_token ? id * d : 0);
    float *states = p->states + row * d;
    memcpy(states, vector, d * sizeof *states);
    if (!p->stack->is_rotary)
        for (int64_t i = 0; i < d; i++)
            states[i] += p->positions[position * d + i];
}

/* Add the embeddings of the n-grams that end at the id number `last` of a sentence, to which `ids`
   points. See model/ngrams.py. */
static void add_ngrams(const Pass *p, int64_t row, const int64_t *ids, int64_t last)
{
    const Stack *s = p->stack;
    float *states = p->states + row * s->d_model;
    for (int64_t n = 2; s->ngrams && n <= s->longest_ngram && n <= last + 2; n++) {
        int begins_with_start = n == last + 2;
        uint64_t hash = begins_with_start;
        for (int64_t i = begins_with_start ? -last : 1 - n; i <= 0; i++)
            hash = (hash * 1000003 + (uint64_t)ids[i] + 2) % 2147483647;
        const float *vector = s->ngrams + (1 + hash % (s->ngram_buckets - 1)) * s->d_model;
        for (int64_t d = 0; d < s->d_model; d++)
            states[d] += vector[d];
    }
}

/* Rotate the queries or keys of a position, `count` numbers: each pair of numbers by its angle. */
static void rotate(const Pass *p, int64_t position, float *x, int64_t count)
{
    int64_t size = p->stack->d_model / p->stack->heads;
    const float *rotation = p->positions + position * size; /* of every pair: cosine, sine */
    for (float *head = x; head < x + count; head += size)
        for (int64_t i = 0; i < size; i += 2) {
            float a = head[i], b = head[i + 1];
            head[i] = a * rotation[i] - b * rotation[i + 1];
            head[i + 1] = a * rotation[i + 1] + b * rotation[i];
        }
}

const void **keys_of(const Pass *p, int thread)
{
    return p->keys + thread * p->longest;
}

/* Bring the next head of keys and values nearer, `size` bytes of each. */
static void prefetch_head(const void *const *keys, int64_t count, int64_t size, int64_t to_values)
{
    enum { CACHE_LINE = 64 };
    for (int64_t i = 0; i < count; i++)
        for (int64_t n = size; n < 2 * size; n += CACHE_LINE) {
            __builtin_prefetch((const char *)keys[i] + n);
            __builtin_prefetch((const char *)keys[i] + to_values + n);
        }
}

void attend(const Pass *p, int64_t count, const float *q, int64_t row, int thread, float *weights)
{
    int64_t d = p->stack->d_model, heads = p->stack->heads, size = d / heads;
    int64_t bytes = kv_size(p->stack);
    const int are_far = p->rows * count * 2 * d >= MANY_KEYS && count * size <= LONG_HEAD;
    const void **keys = keys_of(p, thread);
    float *scores = p->scores + thread * (p->longest + LANES);
    for (int64_t i = 0; weights && i < count; i++)
        weights[i] = 0;
    for (int64_t start = 0; start < d; start += size) {
        if (are_far && start + size < d)
            prefetch_head(keys, count, size * bytes, d * bytes);
        kernels->attend(p->kv_type, size, count, keys, d, q + start, scores,
                        p->heads + row * d + start);
        for (int64_t i = 0; weights && i < count; i++)
            weights[i] += scores[i] / heads;
        for (int64_t i = 0; i < count; i++)
            keys[i] = (const char *)keys[i] + size * bytes;
    }
}

static void apply(const Pass *p, const Linear *layer, int activation, const float *x, float *y)
{
    linear(layer, activation, p->rows, x, NULL, y, p->q, p->threads);
}

typedef struct {
    const Norm *norm;
    int64_t size;
    const float *x;
    float *y;
} Normalization;

static void normalize(void *context, int64_t first, int64_t last, int thread)
{
    const Normalization *n = context;
    for (int64_t r = first; r < last; r++)
        kernels->normalize(n->norm, n->size, n->x + r * n->size, n->y + r * n->size);
}

void layer_norm(const Pass *p, const Norm *norm, float *y)
{
    int64_t d = p->stack->d_model;
    int threads = p->rows * d * WORK_OF_RESULT < LOOP_THRESHOLD ? 1 : p->threads;
    Normalization n = {norm, d, p->states, y};
    if (norm->weight)
        parallel(threads, p->rows, normalize, &n);
}

/* The input of a sub-layer. */
static const float *input(const Pass *p, const Norm *norm)
{
    if (!p->stack->norm_first)
        return p->states;
    layer_norm(p, norm, p->normed);
    return p->normed;
}

/* Add a sub-layer's output, the product of its last linear layer, to its input. */
static void add_to_states(const Pass *p, const Linear *last, const float *x, const Norm *norm)
{
    linear(last, NONE, p->rows, x, p->states, p->states, p->q, p->threads);
    if (!p->stack->norm_first)
        layer_norm(p, norm, p->states);
}

static void feed_forward(const Pass *p, const Layer *layer)
{
    apply(p, &layer->expand, p->stack->activation, input(p, &layer->feed_forward_norm), p->wide);
    add_to_states(p, &layer->contract, p->wide, &layer->feed_forward_norm);
}

/* The last norm and the output layer. */
static void end(const Pass *p, float *y)
{
    layer_norm(p, &p->stack->norm, p->states);
    apply(p, &p->stack->output, NONE, p->states, y);
}

/* In bf16 it lies in `normed`, which is free until the next sub-layer. */
void *own_key(const Pass *p, int64_t row)
{
    int64_t d = p->stack->d_model;
    if (p->kv_type == BF16)
        return (uint16_t *)p->normed + row * 2 * d;
    return p->wide + row * 3 * d + d;
}

/* Self-attention of all rows: the task attends to the positions that a row sees. */
static void self_attention(Attention *a, Task *task)
{
    const Pass *p = a->pass;
    const Layer *layer = p->stack->layers + a->layer;
    int64_t d = p->stack->d_model;
    apply(p, &layer->qkv, NONE, input(p, &layer->self_attention_norm), p->wide);
    if (p->stack->is_rotary)
        for (int64_t r = 0; r < p->rows; r++)
            rotate(p, p->places[r], p->wide + r * 3 * d, 2 * d);
    if (p->kv_type == BF16)
        for (int64_t r = 0; r < p->rows; r++)
            kernels->narrow(2 * d, p->wide + r * 3 * d + d, own_key(p, r));
    parallel(p->in_attention, p->rows, task, a);
    add_to_states(p, &layer->out, p->heads, &layer->self_attention_norm);
}

static void attend_to_sentence(void *context, int64_t first, int64_t last, int thread)
{
    const Attention *a = context;
    const Pass *p = a->pass;
    const Batch *b = a->batch;
    int64_t d = p->stack->d_model;
    const void **keys = keys_of(p, thread);
    for (int64_t r = first; r < last; r++) {
        int64_t start = b->starts[p->sentences[r]], count = b->lengths[p->sentences[r]];
        for (int64_t i = 0; i < count; i++)
            keys[i] = own_key(p, start + i);
        attend(p, count, p->wide + r * 3 * d, r, thread, NULL);
    }
}

/* Rotate the keys of every row for all decoder layers. */
static void rotate_memory(const Pass *p, float *memory)
{
    int64_t d = p->stack->d_model, layers = p->stack->output.outputs / (2 * d);
    for (int64_t r = 0; r < p->rows; r++)
        for (int64_t n = 0; n < layers; n++)
            rotate(p, p->places[r], memory + (r * layers + n) * 2 * d, d);
}

/* In place; a number that has been narrowed needs half of the room. */
static void narrow_memory(const Pass *p, void *memory)
{
    int64_t size = 2 * p->stack->d_model, parts = p->rows * p->stack->output.outputs / size;
    uint16_t *narrow = (uint16_t *)p->heads;
    for (int64_t n = 0; n < parts; n++) {
        kernels->narrow(size, (float *)memory + n * size, narrow);
        memcpy((uint16_t *)memory + n * size, narrow, size * sizeof *narrow);
    }
}

void encode(const Stack *encoder, const Batch *b, int64_t rows, const int64_t *ids, int64_t pad,
            const int64_t *places, const float *positions, void *workspace, int threads)
{
    Pass p = begin(encoder, positions, rows, b->longest, workspace, threads);
    for (int64_t sentence = 0, row = 0; sentence < b->sentences; sentence++) {
        b->starts[sentence] = row;
        for (int64_t i = 0; i < b->longest; i++, ids++)
            if (*ids != pad) {
                p.sentences[row] = sentence;
                p.places[row] = places ? places[sentence * b->longest + i] : i;
                embed(&p, row, *ids, p.places[row]);
                add_ngrams(&p, row, ids, i);
                row++;
            }
        b->lengths[sentence] = row - b->starts[sentence];
    }
    for (int64_t n = 0; n < encoder->num_layers; n++) {
        self_attention(&(Attention){&p, b, n}, attend_to_sentence);
        feed_forward(&p, encoder->layers + n);
    }
    end(&p, b->memory);
    if (encoder->rotates_memory)
        rotate_memory(&p, b->memory);
    if (p.kv_type == BF16)
        narrow_memory(&p, b->memory);
}

/* The keys of a position in the past of a hypothesis, `size` bytes; its values follow. */
static char *key_of(const Batch *b, int64_t size, int64_t layer, int64_t row, int64_t position)
{
    int64_t slot = b->slots ? b->slots[row * b->length + position] : position;
    int64_t block = slot / SLOTS, column = b->columns[row / b->width * b->num_blocks + block];
    int64_t at = (layer * b->num_columns[block] + column) * SLOTS + slot % SLOTS;
    return (char *)b->blocks[block] + at * 2 * size;
}

static void attend_to_past(void *context, int64_t first, int64_t last, int thread)
{
    const Attention *a = context;
    const Pass *p = a->pass;
    const Batch *b = a->batch;
    int64_t d = p->stack->d_model, size = d * kv_size(p->stack);
    const void **keys = keys_of(p, thread);
    for (int64_t row = first; row < last; row++) {
        for (int64_t i = 0; i < b->length; i++)
            keys[i] = key_of(b, size, a->layer, row, i);
        memcpy(key_of(b, size, a->layer, row, b->length - 1), own_key(p, row), 2 * size);
        attend(p, b->length, p->wide + row * 3 * d, row, thread, NULL);
    }
}

static void attend_to_source(void *context, int64_t first, int64_t last, int thread)
{
    const Attention *a = context;
    const Pass *p = a->pass;
    const Batch *b = a->batch;
    int64_t d = p->stack->d_model, size = d * kv_size(p->stack);
    const void **keys = keys_of(p, thread);
    for (int64_t row = first; row < last; row++) {
        int64_t start = b->starts[p->sentences[row]], count = b->lengths[p->sentences[row]];
        if (p->stack->rotates_memory)
            rotate(p, p->places[row], p->wide + row * d, d);
        for (int64_t i = 0; i < count; i++)
            keys[i] = (const char *)b->memory +
                      ((start + i) * p->stack->num_layers + a->layer) * 2 * size;
        attend(p, count, p->wide + row * d, row, thread,
               a->weights ? a->weights + row * b->longest : NULL);
    }
}

void decoder_layer(Attention *a, Task *to_past)
{
    const Pass *p = a->pass;
    const Layer *layer = p->stack->layers + a->layer;
    self_attention(a, to_past);
    apply(p, &layer->query, NONE, input(p, &layer->cross_attention_norm), p->wide);
    parallel(p->in_attention, p->rows, attend_to_source, a);
    add_to_states(p, &layer->cross_out, p->heads, &layer->cross_attention_norm);
    feed_forward(p, layer);
}

void decode(const Stack *decoder, const Batch *b, const int64_t *ids, const float *positions,
            float *logits, void *workspace, int threads)
{
    int64_t longest = most(b->longest, b->length);
    Pass p = begin(decoder, positions, b->sentences * b->width, longest, workspace, threads);
    for (int64_t r = 0; r < p.rows; r++) {
        p.sentences[r] = r / b->width;
        p.places[r] = b->length - 1;
        embed(&p, r, ids[r], p.places[r]);
    }
    for (int64_t n = 0; n < decoder->num_layers; n++)
        decoder_layer(&(Attention){&p, b, n}, attend_to_past);
    end(&p, logits);
}

typedef struct {
    int64_t size;
    const float *x;
    float *totals;
} Rows;

static void log_sum_exp_of_rows(void *context, int64_t first, int64_t last, int thread)
{
    const Rows *rows = context;
    for (int64_t r = first; r < last; r++)
        rows->totals[r] = kernels->log_sum_exp(rows->size, rows->x + r * rows->size);
}

void log_sum_exp(int64_t rows, int64_t size, const float *x, float *y, int threads)
{
    Rows all = {size, x, y};
    parallel(rows * size * WORK_OF_RESULT < PASS_THRESHOLD ? 1 : threads, rows,
             log_sum_exp_of_rows, &all);
}
