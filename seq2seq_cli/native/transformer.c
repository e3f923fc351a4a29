/* The Transformer in fp32, bf16 or int8, for processors with AVX-512.

   It is compiled at installation if there is a C compiler; cpu_library.py calls it. Activations are
   rows, one for every position of a source or for every hypothesis, and the result of a row does
   not depend, to the last bit, on the other rows.

   Precisions differ in the linear layers only, and these only in the instruction: inputs and
   weights are stored in words of 32 bits, each with one fp32 number, two of bf16 or four of int8,
   and an instruction multiplies 16 words of weights by a word of inputs and adds the products to 16
   sums in fp32 (FMA, AVX512_BF16) or int32 (VNNI). AMX does the same with tiles of 16 rows. */

#include <immintrin.h>
#include <math.h>
#include <omp.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "native.h"

enum {
    ROWS = 6,             /* rows whose sums stay in registers */
    CHUNK = 96,           /* rows that are converted at once: a multiple of ROWS and of 2 LANES */
    MANY = 12,            /* with at least so many rows AMX is faster in int8 */
    AHEAD = 2048,         /* bytes of weights that are prefetched */
};

/* Work, in words of weights times rows, each of some 10 ps. Reading a weight costs as much as
   multiplying it with 13 rows, whatever the precision. */
enum {
    WORK_OF_READING = 13,
    WORK_OF_ATTENDING = 8,  /* for each number that attention reads */
    WORK_OF_RESULT = 32,    /* for each output of a norm, an exponential, a maximum */
    LOOP_THRESHOLD = 1 << 19, /* least work of a loop that pays for a second thread */
    PASS_THRESHOLD = 40 << 20, /* and of all loops of a pass: while a pass waits for a thread that
                                  another program keeps from running, a single thread would have
                                  finished many passes */
};

/* library.py compares them. */
const char source_hash[] = SOURCE_HASH;
const int64_t interface[] = {sizeof(Linear), sizeof(Norm), sizeof(Layer), sizeof(Stack),
                             sizeof(Batch), GROUP, SLOTS};

#define INLINE static inline __attribute__((always_inline))

#if __GNUC__ >= 10
#define WITH_BF16
#pragma GCC target("avx512bf16")
#endif
#if __GNUC__ >= 11 && !defined(WITHOUT_AMX)
#define WITH_AMX
#endif

static int has_amx;

INLINE __mmask16 first(long count)
{
    return count >= LANES ? 0xffff : (__mmask16)((1u << count) - 1);
}

/* Return the precisions that this processor supports, a bit for each. This function runs on all. */
__attribute__((target("arch=x86-64"))) int start(void)
{
    int fp32 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
               __builtin_cpu_supports("fma");
    int bf16 = 0, int8 = fp32 && __builtin_cpu_supports("avx512vnni");
#ifdef WITH_BF16
    bf16 = fp32 && __builtin_cpu_supports("avx512bf16");
#endif
#ifdef WITH_AMX
    unsigned eax = 7, ebx, ecx = 0, edx;
    __asm__("cpuid" : "+a"(eax), "=b"(ebx), "+c"(ecx), "=d"(edx));
    const unsigned amx = 1 << 22 | 1 << 24 | 1 << 25; /* bf16, tiles, int8 */
    const int ask_for_tiles = 0x1023, tile_data = 18; /* arch_prctl: ARCH_REQ_XCOMP_PERM */
    has_amx = bf16 && int8 && (edx & amx) == amx &&
              syscall(SYS_arch_prctl, ask_for_tiles, tile_data) == 0;
#endif
    return fp32 << FP32 | bf16 << BF16 | int8 << INT8;
}

/* VNNI and AMX multiply unsigned by signed numbers. A row of inputs x is quantized to
   round(127 x / max|x|) + 128; `shift`, which is 128 times the sum of an output's weights, is
   subtracted from the sum of products. */
static void quantize(long size, long words, const float *x, uint8_t *q, float *scale)
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
    memset(q + size, 128, 4 * words - size);
}

static void round_to_bf16(long size, long words, const float *x, uint16_t *q)
{
#ifdef WITH_BF16
    for (long i = 0; i < size; i += LANES) {
        __m512 some = _mm512_maskz_loadu_ps(first(size - i), x + i);
        _mm256_storeu_si256((__m256i *)(q + i), (__m256i)_mm512_cvtneps_pbh(some));
    }
    long end = (size + LANES - 1) / LANES * LANES;
    memset(q + end, 0, 2 * (2 * words - end));
#endif
}

/* e^x for x <= 0: 2^n e^f, n whole, |f| <= ln 2 / 2, with seven terms of the series of e^f. */
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
   Abramowitz and Stegun 7.1.26, whose error is at most 1.5e-7. */
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

/* Rows of inputs as words, in INT8 with a scale for each row. */
typedef struct {
    long count, words;
    const void *numbers;
    const float *scale;
} Inputs;

/* One group of outputs of a linear layer. */
typedef struct {
    const Inputs *x;
    const int32_t *weight;
    const float *bias, *scale; /* scale and shift: INT8 only */
    const int32_t *shift;
    int precision, activation;
    long outputs, stride; /* outputs from this group on; distance between rows */
    const float *residual;
    float *y;
} Group;

/* Turn sums of products into outputs, for one panel and one row. */
INLINE void finish(const Group *g, const int precision, int panel, long row, __m512i sum)
{
    long o = panel * LANES;
    __mmask16 mask = first(g->outputs - o);
    __m512 result, bias = _mm512_loadu_ps(g->bias + o);
    if (precision == INT8) {
        sum = _mm512_sub_epi32(sum, _mm512_loadu_si512(g->shift + o));
        __m512 scale = _mm512_set1_ps(g->x->scale[row]);
        scale = _mm512_mul_ps(_mm512_loadu_ps(g->scale + o), scale);
        result = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), scale, bias);
    } else {
        result = _mm512_add_ps(_mm512_castsi512_ps(sum), bias);
    }
    if (g->activation == RELU)
        result = _mm512_max_ps(result, _mm512_setzero_ps());
    if (g->activation == GELU)
        result = apply_gelu(result);
    long at = row * g->stride + o;
    if (g->residual)
        result = _mm512_add_ps(result, _mm512_maskz_loadu_ps(mask, g->residual + at));
    _mm512_mask_storeu_ps(g->y + at, mask, result);
}

INLINE __m512i add_products(const int precision, __m512i sum, __m512i x, __m512i weight)
{
    if (precision == INT8)
        return _mm512_dpbusd_epi32(sum, x, weight);
#ifdef WITH_BF16
    if (precision == BF16)
        return (__m512i)_mm512_dpbf16_ps((__m512)sum, (__m512bh)x, (__m512bh)weight);
#endif
    return (__m512i)_mm512_fmadd_ps((__m512)x, (__m512)weight, (__m512)sum);
}

/* Words are added up one after the other, so that a row's sums have the same bits in any batch. */
INLINE void multiply_rows(const Group *g, const int precision, const int rows, long row)
{
    __m512i sums[ROWS][PANELS], done[ROWS][PANELS]; /* in registers; in memory */
    long words = g->x->words;
    const char *x = (const char *)g->x->numbers + 4 * row * words;
    for (int r = 0; r < rows; r++)
        for (int p = 0; p < PANELS; p++)
            sums[r][p] = _mm512_setzero_si512();
    for (long i = 0; i < words; i++) {
        __m512i weights[PANELS];
        for (int p = 0; p < PANELS; p++) {
            const int32_t *weight = g->weight + i * GROUP + p * LANES;
            _mm_prefetch((const char *)weight + AHEAD, _MM_HINT_T0);
            weights[p] = _mm512_loadu_si512(weight);
        }
        for (int r = 0; r < rows; r++) {
            int32_t word;
            memcpy(&word, x + 4 * (r * words + i), sizeof word);
            for (int p = 0; p < PANELS; p++)
                sums[r][p] = add_products(precision, sums[r][p], _mm512_set1_epi32(word), weights[p]);
        }
    }
    for (int r = 0; r < rows; r++)
        for (int p = 0; p < PANELS; p++)
            done[r][p] = sums[r][p];
    for (int p = 0; p < PANELS && p * LANES < g->outputs; p++)
        for (int r = 0; r < rows; r++)
            finish(g, precision, p, row + r, done[r][p]);
}

INLINE void multiply_in(const int precision, const Group *g)
{
    long row = 0, rows = g->x->count;
    for (; row + ROWS <= rows; row += ROWS)
        multiply_rows(g, precision, ROWS, row);
    switch (rows - row) { /* a constant number of rows keeps the sums in registers */
    case 5: multiply_rows(g, precision, 5, row); break;
    case 4: multiply_rows(g, precision, 4, row); break;
    case 3: multiply_rows(g, precision, 3, row); break;
    case 2: multiply_rows(g, precision, 2, row); break;
    case 1: multiply_rows(g, precision, 1, row); break;
    }
}

static void multiply(const Group *g)
{
    switch (g->precision) {
    case INT8: multiply_in(INT8, g); break;
    case BF16: multiply_in(BF16, g); break;
    default: multiply_in(FP32, g);
    }
}

typedef struct {
    uint8_t palette, start_row, none[14];
    uint16_t bytes[16];
    uint8_t rows[16];
} Tiles;

#ifdef WITH_AMX
#define TILES __attribute__((target("amx-int8,amx-bf16,amx-tile")))

/* Tiles 0 to 3 are sums, 4 and 5 inputs, 6 and 7 weights. */
TILES static void take_tiles(Tiles *former, long rows)
{
    Tiles own = {.palette = 1};
    for (int tile = 0; tile < 8; tile++) {
        own.bytes[tile] = 4 * LANES;
        own.rows[tile] = tile < 6 && rows < LANES ? rows : LANES;
    }
    _tile_storeconfig(former); /* oneDNN relies on its own configuration */
    __asm__ volatile("" : "+m"(*former), "+m"(own)); /* some compilers assume 8 bytes */
    _tile_loadconfig(&own);
}

TILES static void give_back_tiles(const Tiles *former)
{
    _tile_loadconfig(former);
}

#define ADD_PRODUCTS_OF_TILES(sums, x, weights) \
    do { \
        if (g->precision == INT8) \
            _tile_dpbusd(sums, x, weights); \
        else \
            _tile_dpbf16ps(sums, x, weights); \
    } while (0)

/* Turn sums of some panels, [rows][panels][LANES], into outputs. */
static void finish_tiles(const Group *g, int panel, int panels, long row, const int32_t *sums)
{
    long rows = g->x->count - row < 2 * LANES ? g->x->count - row : 2 * LANES;
    for (int p = 0; p < panels && (panel + p) * LANES < g->outputs; p++)
        for (long r = 0; r < rows; r++)
            finish(g, g->precision, panel + p, row + r,
                   _mm512_loadu_si512(sums + (r * panels + p) * LANES));
}

/* Up to 16 rows times four panels: each weight is read once, in the order of memory. */
TILES static void multiply_few_tiles(const Group *g)
{
    int32_t sums[LANES][GROUP];
    long words = g->x->words;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (long i = 0; i < words; i += LANES) {
        const int32_t *weight = g->weight + i * GROUP;
        for (long n = 0; n < LANES * GROUP; n += LANES)
            _mm_prefetch((const char *)(weight + n) + 2 * AHEAD, _MM_HINT_T0);
        _tile_loadd(4, (const int32_t *)g->x->numbers + i, 4 * words);
        _tile_loadd(6, weight, 4 * GROUP);
        _tile_loadd(7, weight + LANES, 4 * GROUP);
        ADD_PRODUCTS_OF_TILES(0, 4, 6);
        ADD_PRODUCTS_OF_TILES(1, 4, 7);
        _tile_loadd(6, weight + 2 * LANES, 4 * GROUP);
        _tile_loadd(7, weight + 3 * LANES, 4 * GROUP);
        ADD_PRODUCTS_OF_TILES(2, 4, 6);
        ADD_PRODUCTS_OF_TILES(3, 4, 7);
    }
    _tile_stored(0, sums[0], sizeof sums[0]);
    _tile_stored(1, sums[0] + LANES, sizeof sums[0]);
    _tile_stored(2, sums[0] + 2 * LANES, sizeof sums[0]);
    _tile_stored(3, sums[0] + 3 * LANES, sizeof sums[0]);
    finish_tiles(g, 0, PANELS, 0, sums[0]);
}

/* 32 rows times two panels at once. Rows beyond the last are multiplied too, whatever `x` holds
   there, and their results are dropped. */
TILES static void multiply_many_tiles(const Group *g)
{
    int32_t sums[2 * LANES][2 * LANES];
    long rows = g->x->count, words = g->x->words;
    for (int panel = 0; panel < PANELS && panel * LANES < g->outputs; panel += 2)
        for (long row = 0; row < rows; row += 2 * LANES) {
            const int32_t *upper = (const int32_t *)g->x->numbers + row * words;
            const int32_t *lower = upper + LANES * words;
            int has_lower = rows - row > LANES;
            _tile_zero(0);
            _tile_zero(1);
            _tile_zero(2);
            _tile_zero(3);
            for (long i = 0; i < words; i += LANES) {
                const int32_t *weight = g->weight + i * GROUP + panel * LANES;
                _tile_loadd(4, upper + i, 4 * words);
                _tile_loadd(6, weight, 4 * GROUP);
                _tile_loadd(7, weight + LANES, 4 * GROUP);
                ADD_PRODUCTS_OF_TILES(0, 4, 6);
                ADD_PRODUCTS_OF_TILES(1, 4, 7);
                if (has_lower) {
                    _tile_loadd(5, lower + i, 4 * words);
                    ADD_PRODUCTS_OF_TILES(2, 5, 6);
                    ADD_PRODUCTS_OF_TILES(3, 5, 7);
                }
            }
            _tile_stored(0, sums[0], sizeof sums[0]);
            _tile_stored(1, sums[0] + LANES, sizeof sums[0]);
            _tile_stored(2, sums[LANES], sizeof sums[0]);
            _tile_stored(3, sums[LANES] + LANES, sizeof sums[0]);
            finish_tiles(g, panel, 2, row, sums[0]);
        }
}

static void multiply_tiles(const Group *g)
{
    (g->x->count <= LANES ? multiply_few_tiles : multiply_many_tiles)(g);
}
#else
#define multiply_tiles multiply
static void take_tiles(Tiles *former, long rows) {}
static void give_back_tiles(const Tiles *former) {}
#endif

/* Words of a row of inputs; AMX needs whole tiles. */
static long words_of(int precision, long inputs)
{
    long in_a_tile = precision == INT8 ? 4 * LANES : 2 * LANES;
    return precision == FP32 ? inputs : (inputs + in_a_tile - 1) / in_a_tile * LANES;
}

typedef struct {
    const Linear *layer;
    int activation;
    long rows;
    const float *x, *residual;
    float *y;
    void *q; /* CHUNK rows of inputs as words */
    float scale[CHUNK];
} Product;

/* One thread's part of a product; all threads of a team call it. */
static void multiply_all(Product *p)
{
    const Linear *layer = p->layer;
    int precision = layer->precision;
    long inputs = layer->inputs, outputs = layer->outputs, words = words_of(precision, inputs);
    long groups = (outputs + GROUP - 1) / GROUP;
    /* In bf16 for any number of rows or for none: AMX adds in another order. */
    int use_amx = has_amx && (precision == BF16 || (precision == INT8 && p->rows >= MANY));
    Tiles former;
    if (use_amx)
        take_tiles(&former, p->rows);
    for (long start = 0; start < p->rows; start += CHUNK) {
        long count = p->rows - start < CHUNK ? p->rows - start : CHUNK;
        const float *x = p->x + start * inputs;
        Inputs converted = {count, words, precision == FP32 ? (const void *)x : p->q, p->scale};
        if (precision == INT8) {
#pragma omp for
            for (long r = 0; r < count; r++)
                quantize(inputs, words, x + r * inputs, (uint8_t *)p->q + 4 * r * words,
                         p->scale + r);
        }
        if (precision == BF16) {
#pragma omp for
            for (long r = 0; r < count; r++)
                round_to_bf16(inputs, words, x + r * inputs, (uint16_t *)p->q + 2 * r * words);
        }
        long y_start = start * outputs;
#pragma omp for
        for (long n = 0; n < groups; n++) {
            long o = n * GROUP, at = y_start + o;
            int is_int8 = precision == INT8;
            Group g = {&converted, layer->weight + o * words, layer->bias + o,
                       is_int8 ? layer->scale + o : NULL, is_int8 ? layer->shift + o : NULL,
                       precision, p->activation, outputs - o, outputs,
                       p->residual ? p->residual + at : NULL, p->y + at};
            (use_amx ? multiply_tiles : multiply)(&g);
        }
    }
    if (use_amx)
        give_back_tiles(&former);
}

static long work_of(const Linear *layer, long rows)
{
    return words_of(layer->precision, layer->inputs) * layer->outputs * (rows + WORK_OF_READING);
}

/* `y` may be the residual that is added; `q` is scratch for CHUNK rows of inputs as words. */
void linear(const Linear *layer, int activation, long rows, const float *x, const float *residual,
            float *y, void *q, int threads)
{
    Product product = {layer, activation, rows, x, residual, y, q, {0}};
    if (threads > 1 && work_of(layer, rows) >= LOOP_THRESHOLD) {
#pragma omp parallel num_threads(threads)
        multiply_all(&product);
    } else {
        multiply_all(&product);
    }
}

/* In place; padded with 0 to whole registers. */
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

static void normalize(const Norm *norm, long size, const float *x, float *y)
{
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
        __m512 result = _mm512_fmadd_ps(_mm512_mul_ps(off, scale),
                                        _mm512_maskz_loadu_ps(mask, norm->weight + i),
                                        _mm512_maskz_loadu_ps(mask, norm->bias + i));
        _mm512_mask_storeu_ps(y + i, mask, result);
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

/* A forward pass of some rows through a stack, and its scratch memory. */
typedef struct {
    const Stack *stack;
    const float *positions; /* see encode */
    long rows, longest; /* rows; the most positions that one of them attends to */
    int threads, in_attention; /* threads of the pass, and of attention */
    void *q; /* inputs of linear layers as words */
    float *states, *normed, *heads, *wide; /* rows of d_model; of `wide`, of 3 d_model or d_ff */
    const float **keys; /* of the positions that a row attends to, for each thread; like scores */
    float *scores;
    int32_t *sentences, *places; /* of every row in an encoder, and its position there */
} Pass;

static long most(long a, long b)
{
    return a > b ? a : b;
}

/* Words that the inputs of linear layers need. */
static long words_for_inputs(const Stack *stack)
{
    int precision = stack->output.precision;
    long widest = most(stack->d_model, stack->d_ff);
    return precision == FP32 ? 0 : CHUNK * words_of(precision, widest);
}

/* Bytes of scratch memory that a pass needs. */
long workspace_size(const Stack *stack, long rows, long longest, int threads)
{
    long d = stack->d_model, of_row = 3 * d + most(3 * d, stack->d_ff) + 2;
    long numbers = words_for_inputs(stack) + rows * of_row + threads * (longest + LANES);
    return numbers * sizeof(float) + threads * longest * sizeof(float *);
}

static long work_of_attention(const Stack *stack, long rows, long longest)
{
    return rows * longest * 2 * stack->d_model * WORK_OF_ATTENDING;
}

static long work_of_pass(const Stack *stack, long rows, long longest)
{
    const Layer *l = stack->layers;
    const Linear *linears[] = {&l->qkv, &l->out, &l->query, &l->cross_out, &l->expand,
                               &l->contract};
    long work = work_of_attention(stack, rows, longest);
    for (int n = 0; n < 6; n++)
        work += work_of(linears[n], rows);
    return stack->num_layers * work + work_of(&stack->output, rows);
}

static Pass begin(const Stack *stack, const float *positions, long rows, long longest,
                  void *workspace, int threads)
{
    long d = stack->d_model;
    const float **keys = workspace;
    float *words = (float *)(keys + threads * longest), *states = words + words_for_inputs(stack);
    float *normed = states + rows * d, *heads = normed + rows * d, *wide = heads + rows * d;
    float *scores = wide + rows * most(3 * d, stack->d_ff);
    int32_t *sentences = (int32_t *)(scores + threads * (longest + LANES));
    if (work_of_pass(stack, rows, longest) < PASS_THRESHOLD)
        threads = 1;
    int in_attention = work_of_attention(stack, rows, longest) < LOOP_THRESHOLD ? 1 : threads;
    return (Pass){stack, positions, rows, longest, threads, in_attention, words, states, normed,
                  heads, wide, keys, scores, sentences, sentences + rows};
}

/* An id that is no token gets the vector of token 0: a search among NaN logits may ask for one. */
static void embed(const Pass *p, long row, int64_t id, long position)
{
    long d = p->stack->d_model;
    int is_token = 0 <= id && id < p->stack->vocabulary;
    const float *vector = p->stack->embedding + (is_token ? id * d : 0);
    float *states = p->states + row * d;
    memcpy(states, vector, d * sizeof *states);
    if (!p->stack->is_rotary)
        for (long i = 0; i < d; i++)
            states[i] += p->positions[position * d + i];
}

/* Rotate the queries or keys of a position, `count` numbers: each pair of numbers by its angle. */
static void rotate(const Pass *p, long position, float *x, long count)
{
    long size = p->stack->d_model / p->stack->heads;
    const float *rotation = p->positions + position * size; /* of every pair: cosine, sine */
    for (float *head = x; head < x + count; head += size)
        for (long i = 0; i < size; i += 2) {
            float a = head[i], b = head[i + 1];
            head[i] = a * rotation[i] - b * rotation[i + 1];
            head[i + 1] = a * rotation[i + 1] + b * rotation[i];
        }
}

/* This thread's list of keys. */
static const float **own_keys(const Pass *p)
{
    return p->keys + omp_get_thread_num() * p->longest;
}

/* softmax(q K) V for every head of a row; the queries include the scale of the scores. own_keys()
   points to the keys of each position, all heads side by side; its values follow d_model later. */
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

static void apply(Pass *p, const Linear *layer, int activation, const float *x, float *y)
{
    linear(layer, activation, p->rows, x, NULL, y, p->q, p->threads);
}

/* LayerNorm of the states into `y`, which may be the states; does nothing if there is no norm. */
static void layer_norm(Pass *p, const Norm *norm, float *y)
{
    long d = p->stack->d_model;
    if (norm->weight) {
#pragma omp parallel for num_threads(p->threads) if (p->rows * d * WORK_OF_RESULT >= LOOP_THRESHOLD)
        for (long r = 0; r < p->rows; r++)
            normalize(norm, d, p->states + r * d, y + r * d);
    }
}

/* The input of a sub-layer. */
static const float *input(Pass *p, const Norm *norm)
{
    if (!p->stack->norm_first)
        return p->states;
    layer_norm(p, norm, p->normed);
    return p->normed;
}

/* Add a sub-layer's output, the product of its last linear layer, to its input. */
static void add_to_states(Pass *p, const Linear *last, const float *x, const Norm *norm)
{
    linear(last, NONE, p->rows, x, p->states, p->states, p->q, p->threads);
    if (!p->stack->norm_first)
        layer_norm(p, norm, p->states);
}

static void feed_forward(Pass *p, const Layer *layer)
{
    apply(p, &layer->expand, p->stack->activation, input(p, &layer->feed_forward_norm), p->wide);
    add_to_states(p, &layer->contract, p->wide, &layer->feed_forward_norm);
}

static void end(Pass *p, float *y)
{
    layer_norm(p, &p->stack->norm, p->states);
    apply(p, &p->stack->output, NONE, p->states, y);
}

static void encoder_layer(Pass *p, const Layer *layer, const Batch *b)
{
    long d = p->stack->d_model;
    apply(p, &layer->qkv, NONE, input(p, &layer->self_attention_norm), p->wide);
    if (p->stack->is_rotary) {
#pragma omp parallel for num_threads(p->in_attention) if (p->in_attention > 1)
        for (long r = 0; r < p->rows; r++)
            rotate(p, p->places[r], p->wide + r * 3 * d, 2 * d);
    }
#pragma omp parallel for num_threads(p->in_attention) if (p->in_attention > 1)
    for (long r = 0; r < p->rows; r++) {
        long start = b->starts[p->sentences[r]], count = b->lengths[p->sentences[r]];
        const float **keys = own_keys(p);
        for (long i = 0; i < count; i++)
            keys[i] = p->wide + (start + i) * 3 * d + d;
        attend(p, count, p->wide + r * 3 * d, r);
    }
    add_to_states(p, &layer->out, p->heads, &layer->self_attention_norm);
    feed_forward(p, layer);
}

/* Rotate the keys of every row for all decoder layers. */
static void rotate_memory(const Pass *p, float *memory)
{
    long d = p->stack->d_model, layers = p->stack->output.outputs / (2 * d);
#pragma omp parallel for num_threads(p->in_attention) if (p->in_attention > 1)
    for (long r = 0; r < p->rows; r++)
        for (long n = 0; n < layers; n++)
            rotate(p, p->places[r], memory + (r * layers + n) * 2 * d, d);
}

/* Encode the sources of a batch into its memory, one after the other without padding. `ids`:
   [sentences][longest], of which `rows` are not `pad`; `places`: the position of each id, NULL for
   0, 1, 2 and so on; `positions`: for each position a vector of d_model that is added to the
   embedding or, if it is rotary, the rotations of a head. */
void encode(const Stack *encoder, const Batch *b, long rows, const int64_t *ids, int64_t pad,
            const int64_t *places, const float *positions, void *workspace, int threads)
{
    Pass p = begin(encoder, positions, rows, b->longest, workspace, threads);
    for (long sentence = 0, row = 0; sentence < b->sentences; sentence++) {
        b->starts[sentence] = row;
        for (long i = 0; i < b->longest; i++, ids++)
            if (*ids != pad) {
                p.sentences[row] = sentence;
                p.places[row] = places ? places[sentence * b->longest + i] : i;
                embed(&p, row, *ids, p.places[row]);
                row++;
            }
        b->lengths[sentence] = row - b->starts[sentence];
    }
    for (long n = 0; n < encoder->num_layers; n++)
        encoder_layer(&p, encoder->layers + n, b);
    end(&p, b->memory);
    if (encoder->rotates_memory)
        rotate_memory(&p, b->memory);
}

/* The keys of a position in the past of a hypothesis; its values follow. */
static float *key_of(const Batch *b, long d, long layer, long row, long position)
{
    long slot = b->slots ? b->slots[row * b->length + position] : position;
    long block = slot / SLOTS, column = b->columns[row / b->width * b->num_blocks + block];
    long at = (layer * SLOTS + slot % SLOTS) * b->num_columns[block] + column;
    return b->blocks[block] + at * 2 * d;
}

static void attend_to_past(Pass *p, long layer, const Batch *b, long row)
{
    long d = p->stack->d_model;
    float *result = p->wide + row * 3 * d;
    const float **keys = own_keys(p);
    if (p->stack->is_rotary)
        rotate(p, b->length - 1, result, 2 * d);
    for (long i = 0; i < b->length; i++)
        keys[i] = key_of(b, d, layer, row, i);
    memcpy(key_of(b, d, layer, row, b->length - 1), result + d, 2 * d * sizeof *result);
    attend(p, b->length, result, row);
}

static void attend_to_source(Pass *p, long layer, const Batch *b, long row)
{
    long d = p->stack->d_model, sentence = row / b->width, start = b->starts[sentence];
    const float **keys = own_keys(p);
    if (p->stack->rotates_memory)
        rotate(p, b->length - 1, p->wide + row * d, d);
    for (long i = 0; i < b->lengths[sentence]; i++)
        keys[i] = b->memory + ((start + i) * p->stack->num_layers + layer) * 2 * d;
    attend(p, b->lengths[sentence], p->wide + row * d, row);
}

static void decoder_layer(Pass *p, long number, const Batch *b)
{
    const Layer *layer = p->stack->layers + number;
    apply(p, &layer->qkv, NONE, input(p, &layer->self_attention_norm), p->wide);
#pragma omp parallel for num_threads(p->in_attention) if (p->in_attention > 1)
    for (long r = 0; r < p->rows; r++)
        attend_to_past(p, number, b, r);
    add_to_states(p, &layer->out, p->heads, &layer->self_attention_norm);
    apply(p, &layer->query, NONE, input(p, &layer->cross_attention_norm), p->wide);
#pragma omp parallel for num_threads(p->in_attention) if (p->in_attention > 1)
    for (long r = 0; r < p->rows; r++)
        attend_to_source(p, number, b, r);
    add_to_states(p, &layer->cross_out, p->heads, &layer->cross_attention_norm);
    feed_forward(p, layer);
}

static float greatest(long size, const float *x)
{
    __m512 top = _mm512_set1_ps(-INFINITY);
    for (long i = 0; i < size; i += LANES) {
        __mmask16 mask = first(size - i);
        top = _mm512_mask_max_ps(top, mask, top, _mm512_maskz_loadu_ps(mask, x + i));
    }
    return _mm512_reduce_max_ps(top);
}

/* The index of the greatest number of every row, the first of several, with `count` indices
   forbidden; `otherwise` if all that are left are -inf or NaN. */
void find_greatest(long rows, long size, float *x, long count, const int64_t *forbidden,
                   int64_t otherwise, int64_t *y, int threads)
{
#pragma omp parallel for num_threads(threads) if (rows * size * WORK_OF_RESULT >= PASS_THRESHOLD)
    for (long r = 0; r < rows; r++) {
        float *row = x + r * size;
        for (long n = 0; n < count; n++)
            row[forbidden[n]] = -INFINITY;
        __m512 top = _mm512_set1_ps(greatest(size, row));
        __mmask16 matches = 0;
        long i = 0;
        for (; i < size && !matches; i += LANES)
            matches = _mm512_mask_cmpeq_ps_mask(first(size - i),
                                                _mm512_maskz_loadu_ps(first(size - i), row + i),
                                                top);
        int is_finite = _mm512_cmp_ps_mask(top, _mm512_set1_ps(-INFINITY), _CMP_GT_OQ) & 1;
        y[r] = matches && is_finite ? i - LANES + __builtin_ctz(matches) : otherwise;
    }
}

/* One step: logits of the next token, [sentences][width][vocabulary], and, unless `tokens` is NULL,
   the tokens that find_greatest chooses. `ids`: the last token of every hypothesis, whose keys and
   values are stored in its last slot; `positions`: see encode. */
void decode(const Stack *decoder, const Batch *b, const int64_t *ids, const float *positions,
            float *logits, long count, const int64_t *forbidden, int64_t otherwise,
            int64_t *tokens, void *workspace, int threads)
{
    long longest = most(b->longest, b->length);
    Pass p = begin(decoder, positions, b->sentences * b->width, longest, workspace, threads);
    for (long r = 0; r < p.rows; r++)
        embed(&p, r, ids[r], b->length - 1);
    for (long n = 0; n < decoder->num_layers; n++)
        decoder_layer(&p, n, b);
    end(&p, logits);
    if (tokens)
        find_greatest(p.rows, decoder->output.outputs, logits, count, forbidden, otherwise,
                      tokens, threads);
}

/* The logarithm of the sum of e^x of every row. */
void log_sum_exp(long rows, long size, const float *x, float *y, int threads)
{
#pragma omp parallel for num_threads(threads) if (rows * size * WORK_OF_RESULT >= PASS_THRESHOLD)
    for (long r = 0; r < rows; r++) {
        const float *row = x + r * size;
        __m512 total = _mm512_setzero_ps();
        float top = greatest(size, row);
        for (long i = 0; i < size; i += LANES) {
            __m512 some = _mm512_maskz_loadu_ps(first(size - i), row + i);
            __m512 below = _mm512_sub_ps(some, _mm512_set1_ps(top));
            __m512 power = exponential(_mm512_max_ps(below, _mm512_set1_ps(-100)));
            total = _mm512_mask_add_ps(total, first(size - i), total, power);
        }
        y[r] = top + logf(_mm512_reduce_add_ps(total));
    }
}

/* Continuations of the hypotheses of a sentence, `count` of them, the greatest sum first. */
typedef struct {
    long count;
    float *sums;
    int64_t *origins, *tokens;
} Candidates;

/* Let a continuation take its place among the candidates, behind those with the same sum. */
static void offer(const Candidates *c, float sum, int64_t origin, int64_t token)
{
    long place = c->count - 1;
    for (; place > 0 && sum > c->sums[place - 1]; place--) {
        c->sums[place] = c->sums[place - 1];
        c->origins[place] = c->origins[place - 1];
        c->tokens[place] = c->tokens[place - 1];
    }
    c->sums[place] = sum;
    c->origins[place] = origin;
    c->tokens[place] = token;
}

/* The best continuations of a sentence's hypotheses; where there are fewer, `otherwise` with the
   sum -inf. */
static void find_candidates(const Candidates *c, long width, long size, const float *logits,
                            const float *offsets, int64_t otherwise)
{
    for (long n = 0; n < c->count; n++) {
        c->sums[n] = -INFINITY;
        c->origins[n] = 0;
        c->tokens[n] = otherwise;
    }
    for (long w = 0; w < width; w++, logits += size) {
        __m512 offset = _mm512_set1_ps(offsets[w]);
        for (long i = 0; i < size; i += LANES) {
            float sums[LANES];
            __m512 some = _mm512_add_ps(_mm512_maskz_loadu_ps(first(size - i), logits + i), offset);
            __m512 least = _mm512_set1_ps(c->sums[c->count - 1]);
            __mmask16 greater = _mm512_mask_cmp_ps_mask(first(size - i), some, least, _CMP_GT_OQ);
            if (!greater)
                continue;
            _mm512_storeu_ps(sums, some);
            for (; greater; greater &= greater - 1) {
                int lane = __builtin_ctz(greater);
                if (sums[lane] > c->sums[c->count - 1])
                    offer(c, sums[lane], w, i + lane);
            }
        }
    }
}

/* A step of beam search. Of all continuations of a sentence's `width` hypotheses, whose sums are
   their logits [sentences][width][size] plus the offset of the hypothesis, the best 2 `beam` are
   candidates. The best `beam` of them that do not end become `sums`, `origins` and `tokens`
   [sentences][beam]; where there are fewer, the sums are -inf. `ended` [sentences][width] are the
   sums of the hypotheses that end among the best `beam` candidates, else -inf. */
void beam_step(long sentences, long width, long size, const float *logits, const float *offsets,
               long beam, int64_t end, float *sums, int64_t *origins, int64_t *tokens,
               float *ended, int threads)
{
    long work = sentences * width * size * WORK_OF_RESULT;
#pragma omp parallel for num_threads(threads) if (work >= PASS_THRESHOLD)
    for (long b = 0; b < sentences; b++) {
        float candidate_sums[2 * beam];
        int64_t candidate_origins[2 * beam], candidate_tokens[2 * beam];
        Candidates c = {2 * beam, candidate_sums, candidate_origins, candidate_tokens};
        find_candidates(&c, width, size, logits + b * width * size, offsets + b * width, end);
        for (long w = 0; w < width; w++)
            ended[b * width + w] = -INFINITY;
        for (long n = 0, place = b * beam; place < (b + 1) * beam; n++) {
            if (c.tokens[n] == end && c.sums[n] > -INFINITY) { /* so of `width` at most */
                if (n < beam)
                    ended[b * width + c.origins[n]] = c.sums[n];
                continue;
            }
            sums[place] = c.sums[n];
            origins[place] = c.origins[n];
            tokens[place] = c.tokens[n];
            place++;
        }
    }
}
