/* The Transformer in 8 bits, for processors with AVX-512 VNNI, and AMX where they have it.

   Compiled at installation where there is a C compiler; native.py calls it. Numbers lie in
   rows, a row for every position of a source or for every hypothesis, and what a row gives does
   not depend, to the last bit, on the rows beside it.

   VNNI and AMX multiply unsigned by signed numbers: of a row of inputs x they get
   round(127 x / max|x|) + 128, and the 128 too much, times the sum of an output's weights, are
   taken from the sum of products (`shift`). */

#include <immintrin.h>
#include <math.h>
#include <omp.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
    INTERFACE = 1,        /* native.py asks for it, lest another library be called */
    LANES = 16,           /* numbers of 32 bits in a register */
    PANELS = 4,           /* registers of outputs in a group */
    GROUP = LANES * PANELS,
    QUAD = 4,             /* inputs that one instruction multiplies and adds */
    TILE = 64,            /* inputs of an AMX tile: 16 rows of 64 bytes */
    ROWS = 6,             /* rows whose sums stay in registers */
    BLOCK = 96,           /* rows that are quantized at once: a multiple of ROWS and of 2 LANES */
    MANY = 12,            /* rows from which on AMX is faster */
    SLOTS = 32,           /* in a piece of the past */
    WORTH_A_THREAD = 1 << 18, /* products from which on a second thread pays */
};

typedef struct {
    int64_t inputs, outputs;
    const int8_t *weight; /* [groups][inputs / QUAD][PANELS][LANES][QUAD], filled up with 0 */
    const float *scale;   /* of every output, filled up to whole groups like the next two */
    const int32_t *shift;
    const float *bias;
} Linear;

typedef struct {
    const float *weight, *bias; /* of LayerNorm; NULL: there is none */
    float epsilon;
} Norm;

typedef struct {
    Linear split, join; /* self-attention: queries, keys and values side by side; and its output */
    Norm attended;
    Linear query, gathered; /* attention to the source, of a decoder only */
    Norm gathered_norm;
    Linear expand, contract;
    Norm transformed;
} Layer;

/* An encoder or a decoder. */
typedef struct {
    int64_t num_layers, d_model, heads, d_ff, norm_first, has_gelu;
    const Layer *layers;
    Norm norm;     /* after the last layer */
    Linear output; /* encoder: keys and values of all decoder layers; decoder: logits */
} Stack;

/* Sentences half-way through their decoding. Past keys and values lie in slots; a hypothesis has
   a list of its own. */
typedef struct {
    int64_t sentences, width, length; /* hypotheses of each; positions, with the new one */
    const int32_t *slots;             /* [sentences][width][length]; NULL: the first ones */
    int64_t num_pieces;               /* of the past, each of SLOTS slots */
    float *const *past;               /* of a piece: [layers][SLOTS][num_columns][2][d_model] */
    const int32_t *num_columns;       /* of a piece: sentences that were there when it was made */
    const int32_t *columns;           /* [sentences][num_pieces]: which of them a sentence is */
    const float *memory;              /* [positions][layers][2][d_model]: keys, then values */
    const int32_t *starts, *lengths;  /* of every source: first position, and how many */
} Batch;

enum { NONE, RELU, GELU };

/* One group of outputs: where its weights are, and what they become. */
typedef struct {
    long depth; /* inputs, a multiple of QUAD */
    const int8_t *weight;
    const float *scale, *bias;
    const int32_t *shift;
    int activation;
    long outputs, stride; /* outputs that are left, and from row to row */
    const float *residual;
    float *y;
} Group;

#define INLINE static inline __attribute__((always_inline))

static int has_amx;

INLINE __mmask16 first(long count)
{
    return count >= LANES ? 0xffff : (__mmask16)((1u << count) - 1);
}

/* 0 where nothing here can run, else INTERFACE; itself it runs everywhere. */
__attribute__((target("arch=x86-64"))) int start(void)
{
    int can_run = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                  __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("fma");
    unsigned eax = 7, ebx, ecx = 0, edx;
    __asm__("cpuid" : "+a"(eax), "=b"(ebx), "+c"(ecx), "=d"(edx));
    const int ask_for_tiles = 0x1023, tile_data = 18; /* arch_prctl: ARCH_REQ_XCOMP_PERM */
    has_amx = can_run && (edx >> 24 & 3) == 3 &&
              syscall(SYS_arch_prctl, ask_for_tiles, tile_data) == 0;
    return can_run ? INTERFACE : 0;
}

static void quantize(long size, long depth, const float *x, uint8_t *q, float *scale)
{
    __m512 greatest = _mm512_setzero_ps();
    for (long i = 0; i < size; i += LANES) {
        __m512 some = _mm512_maskz_loadu_ps(first(size - i), x + i);
        greatest = _mm512_max_ps(greatest, _mm512_abs_ps(some));
    }
    float top = _mm512_reduce_max_ps(greatest);
    *scale = top / 127;
    __m512 inverse = _mm512_set1_ps(top > 0 ? 127 / top : 0);
    for (long i = 0; i < size; i += LANES) {
        __m512 some = _mm512_maskz_loadu_ps(first(size - i), x + i);
        __m512i whole = _mm512_cvtps_epi32(_mm512_mul_ps(some, inverse));
        whole = _mm512_add_epi32(whole, _mm512_set1_epi32(128));
        _mm512_mask_cvtepi32_storeu_epi8(q + i, first(size - i), whole);
    }
    memset(q + size, 128, depth - size);
}

/* e^x for x <= 0: 2^n e^f, n whole, |f| <= ln 2 / 2, and of e^f seven terms of its series. */
INLINE __m512 exponential(__m512 x)
{
    __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), 8);
    __m512 f = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693145752f), x); /* ln 2 in two parts */
    f = _mm512_fnmadd_ps(n, _mm512_set1_ps(1.42860677e-6f), f);
    __m512 sum = _mm512_set1_ps(1.f / 720);
    const float terms[] = {1.f / 120, 1.f / 24, 1.f / 6, 1.f / 2, 1.f, 1.f};
    for (int i = 0; i < 6; i++)
        sum = _mm512_fmadd_ps(sum, f, _mm512_set1_ps(terms[i]));
    return _mm512_scalef_ps(sum, n);
}

/* x (1 + erf(x / sqrt 2)) / 2 = max(0, x) - |x| (1 - erf(|x| / sqrt 2)) / 2, with 1 - erf by
   Abramowitz and Stegun 7.1.26: to 1.5e-7. */
INLINE __m512 apply_gelu(__m512 x)
{
    __m512 z = _mm512_mul_ps(_mm512_abs_ps(x), _mm512_set1_ps(0.707106781f));
    __m512 one = _mm512_set1_ps(1);
    __m512 t = _mm512_div_ps(one, _mm512_fmadd_ps(z, _mm512_set1_ps(0.3275911f), one));
    __m512 sum = _mm512_set1_ps(1.061405429f);
    const float terms[] = {-1.453152027f, 1.421413741f, -0.284496736f, 0.254829592f, 0};
    for (int i = 0; i < 5; i++)
        sum = _mm512_fmadd_ps(sum, t, _mm512_set1_ps(terms[i]));
    __m512 square = _mm512_min_ps(_mm512_mul_ps(z, z), _mm512_set1_ps(87));
    __m512 rest = _mm512_mul_ps(sum, exponential(_mm512_sub_ps(_mm512_setzero_ps(), square)));
    __m512 half = _mm512_mul_ps(_mm512_abs_ps(x), _mm512_mul_ps(rest, _mm512_set1_ps(.5f)));
    return _mm512_sub_ps(_mm512_max_ps(x, _mm512_setzero_ps()), half);
}

/* Sums of products to outputs, of one panel and one row. */
INLINE void finish(const Group *g, int panel, long row, float scale, __m512i sum)
{
    long o = panel * LANES;
    __mmask16 mask = first(g->outputs - o);
    sum = _mm512_sub_epi32(sum, _mm512_loadu_si512(g->shift + o));
    __m512 scales = _mm512_mul_ps(_mm512_loadu_ps(g->scale + o), _mm512_set1_ps(scale));
    __m512 made = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), scales, _mm512_loadu_ps(g->bias + o));
    if (g->activation == RELU)
        made = _mm512_max_ps(made, _mm512_setzero_ps());
    if (g->activation == GELU)
        made = apply_gelu(made);
    long at = row * g->stride + o;
    if (g->residual)
        made = _mm512_add_ps(made, _mm512_maskz_loadu_ps(mask, g->residual + at));
    _mm512_mask_storeu_ps(g->y + at, mask, made);
}

INLINE void multiply(const Group *g, const int rows, long row, const uint8_t *q, const float *scale)
{
    __m512i sums[ROWS][PANELS], done[ROWS][PANELS]; /* in registers, and in memory */
    for (int r = 0; r < rows; r++)
        for (int p = 0; p < PANELS; p++)
            sums[r][p] = _mm512_setzero_si512();
    for (long i = 0; i < g->depth; i += QUAD) {
        __m512i weights[PANELS];
        for (int p = 0; p < PANELS; p++)
            weights[p] = _mm512_loadu_si512(g->weight + i * GROUP + p * LANES * QUAD);
        for (int r = 0; r < rows; r++) {
            int32_t quad;
            memcpy(&quad, q + (row + r) * g->depth + i, QUAD);
            for (int p = 0; p < PANELS; p++)
                sums[r][p] = _mm512_dpbusd_epi32(sums[r][p], _mm512_set1_epi32(quad), weights[p]);
        }
    }
    for (int r = 0; r < rows; r++)
        for (int p = 0; p < PANELS; p++)
            done[r][p] = sums[r][p];
    for (int p = 0; p < PANELS && p * LANES < g->outputs; p++)
        for (int r = 0; r < rows; r++)
            finish(g, p, row + r, scale[row + r], done[r][p]);
}

static void multiply_few(const Group *g, long rows, const uint8_t *q, const float *scale)
{
    long row = 0;
    for (; row + ROWS <= rows; row += ROWS)
        multiply(g, ROWS, row, q, scale);
    switch (rows - row) { /* of a constant number, so that the sums are in registers */
    case 5: multiply(g, 5, row, q, scale); break;
    case 4: multiply(g, 4, row, q, scale); break;
    case 3: multiply(g, 3, row, q, scale); break;
    case 2: multiply(g, 2, row, q, scale); break;
    case 1: multiply(g, 1, row, q, scale); break;
    }
}

#if __GNUC__ >= 11
typedef struct {
    uint8_t palette, start_row, none[14];
    uint16_t bytes[16];
    uint8_t rows[16];
} Tiles;

/* 32 rows times two panels at once: tiles 0 to 3 are sums, 4 and 5 inputs, 6 and 7 weights. Of
   rows that are not there whatever lies in `q` is multiplied, and nothing is kept. */
__attribute__((target("amx-int8,amx-tile"))) static void multiply_many(
    const Group *g, long rows, const uint8_t *q, const float *scale)
{
    static const Tiles own = {
        1, 0, {0}, {TILE, TILE, TILE, TILE, TILE, TILE, TILE, TILE}, {16, 16, 16, 16, 16, 16, 16, 16}};
    Tiles old;
    _tile_storeconfig(&old); /* oneDNN does not look whether its own is still there */
    __asm__ volatile("" : "+m"(old)); /* some compilers take it for 8 bytes */
    _tile_loadconfig(&own);
    int32_t sums[2 * LANES][2 * LANES];
    for (int panel = 0; panel < PANELS && panel * LANES < g->outputs; panel += 2)
        for (long row = 0; row < rows; row += 2 * LANES) {
            _tile_zero(0);
            _tile_zero(1);
            _tile_zero(2);
            _tile_zero(3);
            const uint8_t *upper = q + row * g->depth, *lower = upper + LANES * g->depth;
            for (long i = 0; i < g->depth; i += TILE) {
                const int8_t *weight = g->weight + i * GROUP + panel * LANES * QUAD;
                _tile_loadd(4, upper + i, g->depth);
                _tile_loadd(6, weight, GROUP * QUAD);
                _tile_loadd(7, weight + LANES * QUAD, GROUP * QUAD);
                _tile_dpbusd(0, 4, 6);
                _tile_dpbusd(1, 4, 7);
                if (rows - row > LANES) {
                    _tile_loadd(5, lower + i, g->depth);
                    _tile_dpbusd(2, 5, 6);
                    _tile_dpbusd(3, 5, 7);
                }
            }
            _tile_stored(0, sums[0], sizeof sums[0]);
            _tile_stored(1, sums[0] + LANES, sizeof sums[0]);
            _tile_stored(2, sums[LANES], sizeof sums[0]);
            _tile_stored(3, sums[LANES] + LANES, sizeof sums[0]);
            long count = rows - row < 2 * LANES ? rows - row : 2 * LANES;
            for (int p = 0; p < 2 && (panel + p) * LANES < g->outputs; p++)
                for (long r = 0; r < count; r++)
                    finish(g, panel + p, row + r, scale[row + r],
                           _mm512_loadu_si512(sums[r] + p * LANES));
        }
    _tile_loadconfig(&old);
}
#else
#define multiply_many multiply_few
#endif

/* `y` may be the residual that is added; `q` has room for BLOCK rows of inputs. */
void linear(const Linear *layer, int activation, long rows, const float *x, const float *residual,
            float *y, uint8_t *q, int threads)
{
    long depth = (layer->inputs + QUAD - 1) / QUAD * QUAD;
    long groups = (layer->outputs + GROUP - 1) / GROUP;
    float scale[BLOCK];
    if (rows * depth * layer->outputs < WORTH_A_THREAD)
        threads = 1;
    for (long start = 0; start < rows; start += BLOCK) {
        long count = rows - start < BLOCK ? rows - start : BLOCK;
        for (long r = 0; r < count; r++)
            quantize(layer->inputs, depth, x + (start + r) * layer->inputs, q + r * depth, scale + r);
        int use_amx = has_amx && count >= MANY && depth % TILE == 0;
        long y_start = start * layer->outputs;
#pragma omp parallel for num_threads(threads) if (threads > 1)
        for (long n = 0; n < groups; n++) {
            long o = n * GROUP;
            Group g = {depth, layer->weight + o * depth, layer->scale + o, layer->bias + o,
                       layer->shift + o, activation, layer->outputs - o, layer->outputs,
                       residual ? residual + y_start + o : NULL, y + y_start + o};
            (use_amx ? multiply_many : multiply_few)(&g, count, q, scale);
        }
    }
}

/* In place, and filled up with 0 to whole registers. */
static void softmax(float *scores, long count)
{
    __m512 top = _mm512_set1_ps(-INFINITY), total = _mm512_setzero_ps();
    for (long i = 0; i < count; i += LANES)
        top = _mm512_mask_max_ps(top, first(count - i), top, _mm512_loadu_ps(scores + i));
    top = _mm512_set1_ps(_mm512_reduce_max_ps(top));
    for (long i = 0; i < count; i += LANES) {
        __m512 below = _mm512_sub_ps(_mm512_loadu_ps(scores + i), top);
        __m512 power = exponential(_mm512_max_ps(below, _mm512_set1_ps(-100)));
        power = _mm512_maskz_mov_ps(first(count - i), power);
        _mm512_storeu_ps(scores + i, power);
        total = _mm512_add_ps(total, power);
    }
    __m512 share = _mm512_set1_ps(1 / _mm512_reduce_add_ps(total));
    for (long i = 0; i < count; i += LANES)
        _mm512_storeu_ps(scores + i, _mm512_mul_ps(_mm512_loadu_ps(scores + i), share));
}

/* `y` may be `x`; without a norm nothing is done, and then it is. */
static void layer_norm(const Norm *norm, long rows, long size, const float *x, float *y)
{
    if (!norm->weight)
        return;
    for (long r = 0; r < rows; r++, x += size, y += size) {
        __m512 sum = _mm512_setzero_ps(), squares = _mm512_setzero_ps();
        for (long i = 0; i < size; i += LANES)
            sum = _mm512_add_ps(sum, _mm512_maskz_loadu_ps(first(size - i), x + i));
        __m512 mean = _mm512_set1_ps(_mm512_reduce_add_ps(sum) / size);
        for (long i = 0; i < size; i += LANES) {
            __mmask16 mask = first(size - i);
            __m512 off = _mm512_maskz_sub_ps(mask, _mm512_maskz_loadu_ps(mask, x + i), mean);
            squares = _mm512_fmadd_ps(off, off, squares);
        }
        float variance = _mm512_reduce_add_ps(squares) / size;
        __m512 scale = _mm512_set1_ps(1 / sqrtf(variance + norm->epsilon));
        for (long i = 0; i < size; i += LANES) {
            __mmask16 mask = first(size - i);
            __m512 off = _mm512_sub_ps(_mm512_maskz_loadu_ps(mask, x + i), mean);
            __m512 made = _mm512_fmadd_ps(_mm512_mul_ps(off, scale),
                                          _mm512_maskz_loadu_ps(mask, norm->weight + i),
                                          _mm512_maskz_loadu_ps(mask, norm->bias + i));
            _mm512_mask_storeu_ps(y + i, mask, made);
        }
    }
}

static void attend_head(long size, long count, const float *const *keys, long to_values,
                        const float *q, float *scores, float *y)
{
    for (long i = 0; i < count; i++) {
        __m512 sum = _mm512_setzero_ps();
        for (long k = 0; k < size; k += LANES) {
            __m512 part = _mm512_maskz_loadu_ps(first(size - k), keys[i] + k);
            sum = _mm512_fmadd_ps(_mm512_maskz_loadu_ps(first(size - k), q + k), part, sum);
        }
        scores[i] = _mm512_reduce_add_ps(sum);
    }
    softmax(scores, count);
    for (long k = 0; k < size; k += LANES) {
        __m512 sum = _mm512_setzero_ps();
        for (long i = 0; i < count; i++) {
            __m512 part = _mm512_maskz_loadu_ps(first(size - k), keys[i] + to_values + k);
            sum = _mm512_fmadd_ps(_mm512_set1_ps(scores[i]), part, sum);
        }
        _mm512_mask_storeu_ps(y + k, first(size - k), sum);
    }
}

/* Rows that go through a stack, and room for what its layers hand on: native.py knows how much
   that is. */
typedef struct {
    const Stack *stack;
    long rows, longest; /* as many positions are looked at, at most */
    int threads;
    const float **keys; /* of the positions that a row looks at; room for each thread, as scores */
    float *scores;
    uint8_t *q;
    float *states, *normed, *heads, *wide; /* rows of d_model, but `wide` of 3 d_model or d_ff */
} Pass;

static Pass begin(const Stack *stack, long rows, long longest, float *states, void *room,
                  int threads)
{
    long d = stack->d_model, widest = stack->d_ff > d ? stack->d_ff : d;
    const float **keys = room;
    float *scores = (float *)(keys + threads * longest);
    uint8_t *q = (uint8_t *)(scores + threads * (longest + LANES));
    float *normed = (float *)(q + BLOCK * ((widest + QUAD - 1) / QUAD * QUAD));
    float *heads = normed + rows * d, *wide = heads + rows * d;
    return (Pass){stack, rows, longest, threads, keys, scores, q, states, normed, heads, wide};
}

/* Where this thread lists the keys of a row. */
static const float **own_keys(const Pass *p)
{
    return p->keys + omp_get_thread_num() * p->longest;
}

/* softmax(q K) V for every head of a row; the scale of the scores is in the queries. Keys: those
   in own_keys(), all heads one after the other; a position's values lie d_model behind them. */
static void attend(const Pass *p, long count, const float *q, long row)
{
    long d = p->stack->d_model, size = d / p->stack->heads;
    const float **keys = own_keys(p);
    float *scores = p->scores + omp_get_thread_num() * (p->longest + LANES);
    for (long start = 0; start < d; start += size) {
        attend_head(size, count, keys, d, q + start, scores, p->heads + row * d + start);
        for (long i = 0; i < count; i++)
            keys[i] += size;
    }
}

static void multiply_rows(Pass *p, const Linear *layer, int activation, const float *x, float *y)
{
    linear(layer, activation, p->rows, x, NULL, y, p->q, p->threads);
}

/* What a sub-layer reads. */
static const float *input(Pass *p, const Norm *norm)
{
    if (!p->stack->norm_first)
        return p->states;
    layer_norm(norm, p->rows, p->stack->d_model, p->states, p->normed);
    return p->normed;
}

/* A sub-layer's last product is added to what it read. */
static void add_to_states(Pass *p, const Linear *last, const float *x, const Norm *norm)
{
    linear(last, NONE, p->rows, x, p->states, p->states, p->q, p->threads);
    if (!p->stack->norm_first)
        layer_norm(norm, p->rows, p->stack->d_model, p->states, p->states);
}

static void feed_forward(Pass *p, const Layer *layer)
{
    int activation = p->stack->has_gelu ? GELU : RELU;
    multiply_rows(p, &layer->expand, activation, input(p, &layer->transformed), p->wide);
    add_to_states(p, &layer->contract, p->wide, &layer->transformed);
}

static void end(Pass *p, float *y)
{
    layer_norm(&p->stack->norm, p->rows, p->stack->d_model, p->states, p->states);
    multiply_rows(p, &p->stack->output, NONE, p->states, y);
}

static void encoder_layer(Pass *p, const Layer *layer, const int32_t *starts,
                          const int32_t *lengths, const int32_t *sentences)
{
    long d = p->stack->d_model;
    multiply_rows(p, &layer->split, NONE, input(p, &layer->attended), p->wide);
#pragma omp parallel for num_threads(p->threads) if (p->threads > 1)
    for (long r = 0; r < p->rows; r++) {
        long start = starts[sentences[r]], count = lengths[sentences[r]];
        const float **keys = own_keys(p);
        for (long i = 0; i < count; i++)
            keys[i] = p->wide + (start + i) * 3 * d + d;
        attend(p, count, p->wide + r * 3 * d, r);
    }
    add_to_states(p, &layer->join, p->heads, &layer->attended);
    feed_forward(p, layer);
}

/* Keys and values of the decoder's layers, of sources one after the other without padding.
   `states`: of every position its embedding, and room; `sentences`: of every position. */
void encode(const Stack *encoder, long rows, long longest, float *states, const int32_t *starts,
            const int32_t *lengths, const int32_t *sentences, float *memory, void *room,
            int threads)
{
    Pass p = begin(encoder, rows, longest, states, room, threads);
    for (long n = 0; n < encoder->num_layers; n++)
        encoder_layer(&p, encoder->layers + n, starts, lengths, sentences);
    end(&p, memory);
}

/* Where the keys of a position of a hypothesis' past lie, and behind them its values. */
static float *key_of(const Batch *b, long d, long layer, long row, long position)
{
    long slot = b->slots ? b->slots[row * b->length + position] : position;
    long piece = slot / SLOTS, column = b->columns[row / b->width * b->num_pieces + piece];
    long at = (layer * SLOTS + slot % SLOTS) * b->num_columns[piece] + column;
    return b->past[piece] + at * 2 * d;
}

static void attend_to_past(Pass *p, long layer, const Batch *b, long row)
{
    long d = p->stack->d_model;
    const float *made = p->wide + row * 3 * d, **keys = own_keys(p);
    for (long i = 0; i < b->length; i++)
        keys[i] = key_of(b, d, layer, row, i);
    memcpy(key_of(b, d, layer, row, b->length - 1), made + d, 2 * d * sizeof *made);
    attend(p, b->length, made, row);
}

static void attend_to_source(Pass *p, long layer, const Batch *b, long row)
{
    long d = p->stack->d_model, sentence = row / b->width, start = b->starts[sentence];
    const float **keys = own_keys(p);
    for (long i = 0; i < b->lengths[sentence]; i++)
        keys[i] = b->memory + ((start + i) * p->stack->num_layers + layer) * 2 * d;
    attend(p, b->lengths[sentence], p->wide + row * d, row);
}

static void decoder_layer(Pass *p, long number, const Batch *b)
{
    const Layer *layer = p->stack->layers + number;
    multiply_rows(p, &layer->split, NONE, input(p, &layer->attended), p->wide);
#pragma omp parallel for num_threads(p->threads) if (p->threads > 1 && p->rows > 1)
    for (long r = 0; r < p->rows; r++)
        attend_to_past(p, number, b, r);
    add_to_states(p, &layer->join, p->heads, &layer->attended);
    multiply_rows(p, &layer->query, NONE, input(p, &layer->gathered_norm), p->wide);
#pragma omp parallel for num_threads(p->threads) if (p->threads > 1 && p->rows > 1)
    for (long r = 0; r < p->rows; r++)
        attend_to_source(p, number, b, r);
    add_to_states(p, &layer->gathered, p->heads, &layer->gathered_norm);
    feed_forward(p, layer);
}

/* Logits of the next token, [sentences][width][vocabulary]; `states`: of every hypothesis the
   embedding of its last token, and room. Keys and values go into its last slot. */
void decode(const Stack *decoder, const Batch *batch, long longest, float *states, float *logits,
            void *room, int threads)
{
    Pass p = begin(decoder, batch->sentences * batch->width, longest, states, room, threads);
    for (long n = 0; n < decoder->num_layers; n++)
        decoder_layer(&p, n, batch);
    end(&p, logits);
}

/* The logarithm of the sum of e^x, of every row. */
void log_sum_exp(long rows, long size, const float *x, float *y, int threads)
{
#pragma omp parallel for num_threads(threads) if (threads > 1 && rows * size > WORTH_A_THREAD)
    for (long r = 0; r < rows; r++) {
        const float *row = x + r * size;
        __m512 top = _mm512_set1_ps(-INFINITY), total = _mm512_setzero_ps();
        for (long i = 0; i < size; i += LANES)
            top = _mm512_mask_max_ps(top, first(size - i), top,
                                     _mm512_maskz_loadu_ps(first(size - i), row + i));
        float greatest = _mm512_reduce_max_ps(top);
        for (long i = 0; i < size; i += LANES) {
            __m512 some = _mm512_maskz_loadu_ps(first(size - i), row + i);
            __m512 below = _mm512_sub_ps(some, _mm512_set1_ps(greatest));
            __m512 power = exponential(_mm512_max_ps(below, _mm512_set1_ps(-100)));
            total = _mm512_mask_add_ps(total, first(size - i), total, power);
        }
        y[r] = greatest + logf(_mm512_reduce_add_ps(total));
    }
}
