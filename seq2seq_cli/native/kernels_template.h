/* Kernels in terms of vectors of 16 numbers, however many registers these are. An instruction set
   includes its vectors_*.h, defines its choices, and then includes this file:

   NAME, PRECISIONS        of the table
   ROWS                    rows whose sums stay in registers
   PANELS_WITH(rows)       panels of outputs that are computed at once with so many rows
   PREFETCHED(g, i, panel) an address; without it, AHEAD bytes beyond word i
   UNSIGNED_INPUTS         INT8: inputs are numbers of 0 to 255, 128 more than what they mean
   MAX_NONZERO_WORDS, add_unsigned  optional: see sparse_inputs.h

   In all of them the same additions are made in the same order, so results are equal to the bit.
   The sums of a row do not depend on the other rows. */

/* e^x for -87 <= x <= 0: 2^n e^f, n whole, |f| <= ln 2 / 2, with seven terms of the series. */
INLINE vec exponential(vec x)
{
    vec n = round_to_even(mul(x, broadcast(1.44269504f)));
    vec f = sub_mul(n, broadcast(0.693145752f), x); /* ln 2 in two parts */
    f = sub_mul(n, broadcast(1.42860677e-6f), f);
    vec sum = broadcast(1.f / 720);
    sum = mul_add(sum, f, broadcast(1.f / 120));
    sum = mul_add(sum, f, broadcast(1.f / 24));
    sum = mul_add(sum, f, broadcast(1.f / 6));
    sum = mul_add(sum, f, broadcast(1.f / 2));
    sum = mul_add(sum, f, broadcast(1));
    sum = mul_add(sum, f, broadcast(1));
    return times_power_of_2(sum, n);
}

/* `max` returns its second operand if one of them is NaN, which must show in the result. */
INLINE vec exponential_below(vec x, vec top)
{
    return exponential(max(broadcast(-87), sub(x, top)));
}

/* (1 - erf(|x| / sqrt 2)) / 2 by Abramowitz and Stegun 7.1.26, whose error is at most 1.5e-7. */
INLINE vec tail_of_normal(vec x)
{
    vec z = mul(absolute(x), broadcast(0.707106781f)), one = broadcast(1);
    vec t = divide(one, mul_add(z, broadcast(0.3275911f), one));
    vec sum = broadcast(1.061405429f);
    sum = mul_add(sum, t, broadcast(-1.453152027f));
    sum = mul_add(sum, t, broadcast(1.421413741f));
    sum = mul_add(sum, t, broadcast(-0.284496736f));
    sum = mul_add(sum, t, broadcast(0.254829592f));
    sum = mul_add(sum, t, zeros());
    vec square = min(mul(z, z), broadcast(87));
    vec rest = mul(sum, exponential(sub(zeros(), square)));
    return mul(rest, broadcast(.5f));
}

/* x (1 + erf(x / sqrt 2)) / 2 = max(0, x) - |x| (1 - erf(|x| / sqrt 2)) / 2. */
INLINE vec apply_gelu(vec x)
{
    return sub(max(x, zeros()), mul(absolute(x), tail_of_normal(x)));
}

/* 1 / (1 + e^|x|) = t / (1 + t) with t = e^-|x|. */
INLINE vec tail_of_sigmoid(vec x)
{
    vec t = exponential(sub(zeros(), min(absolute(x), broadcast(87))));
    return divide(t, add(broadcast(1), t));
}

/* x / (1 + e^-x) = max(0, x) - |x| / (1 + e^|x|). */
INLINE vec apply_silu(vec x)
{
    return sub(max(x, zeros()), mul(absolute(x), tail_of_sigmoid(x)));
}

static void quantize(int64_t size, int64_t words, const float *x, uint8_t *q, float *scale)
{
    const int zero = UNSIGNED_INPUTS ? 128 : 0;
    vec most = zeros(), nan = zeros(); /* 0 times infinity is NaN too */
    for (int64_t i = 0; i < size; i += LANES) {
        vec input = load_first(x + i, size - i);
        most = max(most, absolute(input));
        nan = mul_add(input, zeros(), nan);
    }
    float top = greatest_of(most);
    *scale = top / 127 + sum_of(nan);
    vec inverse = broadcast(top > 0 ? 127 / top : 0);
    for (int64_t i = 0; i < size; i += LANES)
        store_bytes(q + i, to_whole(mul(load_first(x + i, size - i), inverse)), zero);
    memset(q + size, zero, 4 * words - size);
}

/* Turn sums of products into outputs, for one panel and one row. */
INLINE void finish(const Group *g, const int precision, int panel, int64_t row, ivec sum)
{
    int64_t o = panel * LANES, at = row * g->stride + o, count = g->outputs - o;
    vec result, bias = load(g->bias + o);
    if (precision == INT8) {
        if (UNSIGNED_INPUTS)
            sum = isub(sum, iload(g->shift + o));
        vec scale = mul(load(g->scale + o), broadcast(g->x->scale[row]));
        result = mul_add(to_float(sum), scale, bias);
    } else {
        result = add(as_vec(sum), bias);
    }
    if (g->activation == RELU)
        result = max(zeros(), result);
    if (g->activation == GELU)
        result = apply_gelu(result);
    if (g->activation == SILU)
        result = apply_silu(result);
    if (g->residual)
        result = add(result, load_first(g->residual + at, count));
    store_first(g->y + at, count, result);
}

#ifndef PREFETCHED
enum { AHEAD = 2048 }; /* bytes of weights that are prefetched */
#define PREFETCHED(g, i, panel) \
    ((const char *)((g)->weight + (i) * GROUP + (panel) * LANES) + AHEAD)
#endif

/* Words are added up one after the other, so that a row's sums have the same bits in any batch. */
INLINE void multiply_tile(const Group *g, const int precision, const int rows, const int panels,
                          int64_t row, int panel)
{
    ivec sums[ROWS][PANELS], done[ROWS][PANELS]; /* in registers; in memory */
    int64_t words = g->x->words;
    const char *x = (const char *)g->x->numbers + 4 * row * words;
    for (int r = 0; r < rows; r++)
        for (int p = 0; p < panels; p++)
            sums[r][p] = izeros();
    for (int64_t i = 0; i < words; i++) {
        ivec weights[PANELS];
        for (int p = 0; p < panels; p++) {
            __builtin_prefetch(PREFETCHED(g, i, panel + p));
            weights[p] = iload(g->weight + i * GROUP + (panel + p) * LANES);
        }
        for (int r = 0; r < rows; r++) {
            int32_t word;
            memcpy(&word, x + 4 * (r * words + i), sizeof word);
            for (int p = 0; p < panels; p++)
                sums[r][p] = add_products(precision, sums[r][p], word, weights[p]);
        }
    }
    for (int r = 0; r < rows; r++)
        for (int p = 0; p < panels; p++)
            done[r][p] = sums[r][p];
    const Group own = *g; /* which stores to y cannot change */
    for (int p = 0; p < panels && (panel + p) * LANES < own.outputs; p++)
        for (int r = 0; r < rows; r++)
            finish(&own, precision, panel + p, row + r, done[r][p]);
}

/* A constant number of rows keeps the sums in registers. */
INLINE void multiply_rows(const Group *g, const int precision, int rows, const int panels,
                          int64_t row, int panel)
{
    switch (rows) {
    case 1: multiply_tile(g, precision, 1, panels, row, panel); break;
#if ROWS >= 2
    case 2: multiply_tile(g, precision, 2, panels, row, panel); break;
#endif
#if ROWS >= 3
    case 3: multiply_tile(g, precision, 3, panels, row, panel); break;
#endif
#if ROWS >= 4
    case 4: multiply_tile(g, precision, 4, panels, row, panel); break;
#endif
#if ROWS >= 5
    case 5: multiply_tile(g, precision, 5, panels, row, panel); break;
#endif
#if ROWS >= 6
    case 6: multiply_tile(g, precision, 6, panels, row, panel); break;
#endif
    }
}

/* All rows, in blocks of about the same number, and as many panels at once as fit beside them. */
INLINE void multiply_in(const int precision, const Group *g)
{
    int64_t count = g->x->count, blocks = (count + ROWS - 1) / ROWS;
    int64_t most = blocks ? (count + blocks - 1) / blocks : 0;
    (void)most; /* unless the number of panels depends on it */
#define IN_PANELS(panels) \
    for (int panel = 0; panel < PANELS && panel * LANES < g->outputs; panel += panels) \
        for (int64_t b = 0, row = 0; b < blocks; b++) { \
            int rows = (count - row + blocks - b - 1) / (blocks - b); \
            multiply_rows(g, precision, rows, panels, row, panel); \
            row += rows; \
        }
    if (PANELS_WITH(most) == 1)
        IN_PANELS(1)
    else if (PANELS_WITH(most) == 2)
        IN_PANELS(2)
    else
        IN_PANELS(4)
}

#ifdef MAX_NONZERO_WORDS
#include "sparse_inputs.h"
#else
#define multiply_if_sparse(groups, count) 0
#endif

static void multiply(const Group *groups, int64_t count)
{
    if (multiply_if_sparse(groups, count))
        return;
    for (const Group *g = groups; g < groups + count; g++)
        switch (g->precision) {
        case INT8: multiply_in(INT8, g); break;
#ifdef HAS_BF16
        case BF16: multiply_in(BF16, g); break;
#endif
        default: multiply_in(FP32, g);
        }
}

/* In place; padded with 0 to whole vectors. */
static void softmax(float *scores, int64_t count)
{
    vec top = broadcast(-INFINITY), total = zeros();
    for (int64_t i = 0; i < count; i += LANES)
        top = max(top, fill(load(scores + i), count - i, -INFINITY));
    top = broadcast(greatest_of(top));
    for (int64_t i = 0; i < count; i += LANES) {
        vec power = fill(exponential_below(load(scores + i), top), count - i, 0);
        store(scores + i, power);
        total = add(total, power);
    }
    vec share = broadcast(1 / sum_of(total));
    for (int64_t i = 0; i < count; i += LANES)
        store(scores + i, mul(load(scores + i), share));
}

/* Round a row to bf16. */
static void narrow_row(int64_t size, const float *x, uint16_t *y)
{
    for (int64_t i = 0; i < size; i += LANES)
        store_bf16(y + i, size - i, load_first(x + i, size - i));
}

/* Numbers of a key or a value, from `start` on. */
INLINE vec load_kv(const int type, const void *x, int64_t start, int64_t count)
{
    if (type == BF16)
        return load_bf16((const uint16_t *)x + start, count);
    return load_first((const float *)x + start, count);
}

/* Scores of one key or of four. */
INLINE void multiply_keys(const int type, const int number, int64_t size, const void *const *keys,
                          const float *q, float *scores)
{
    vec sums[4] = {zeros(), zeros(), zeros(), zeros()};
    for (int64_t k = 0; k < size; k += LANES) {
        vec part = load_first(q + k, size - k);
        for (int n = 0; n < number; n++)
            sums[n] = mul_add(part, load_kv(type, keys[n], k, size - k), sums[n]);
    }
    if (number == 4)
        store_sums(scores, sums);
    else
        *scores = sum_of(*sums);
}

/* One vector or two of the sum of all values, times their scores. */
INLINE void add_values(const int type, const int number, int64_t size, int64_t count,
                       const void *const *keys, int64_t to_values, const float *scores, float *y)
{
    vec sums[2] = {zeros(), zeros()};
    for (int64_t i = 0; i < count; i++) {
        vec score = broadcast(scores[i]);
        for (int n = 0; n < number; n++) {
            int64_t k = n * LANES;
            vec part = load_kv(type, keys[i], to_values + k, size - k);
            sums[n] = mul_add(score, part, sums[n]);
        }
    }
    for (int n = 0; n < number; n++)
        store_first(y + n * LANES, size - n * LANES, sums[n]);
}

INLINE void attend_to_kv(const int type, int64_t size, int64_t count, const void *const *keys,
                         int64_t to_values, const float *q, float *scores, float *y)
{
    int64_t i = 0, k = 0;
    for (; i + 4 <= count; i += 4)
        multiply_keys(type, 4, size, keys + i, q, scores + i);
    for (; i < count; i++)
        multiply_keys(type, 1, size, keys + i, q, scores + i);
    softmax(scores, count);
    for (; k + LANES < size; k += 2 * LANES)
        add_values(type, 2, size - k, count, keys, to_values + k, scores, y + k);
    if (k < size)
        add_values(type, 1, size - k, count, keys, to_values + k, scores, y + k);
}

static void attend(int type, int64_t size, int64_t count, const void *const *keys,
                   int64_t to_values, const float *q, float *scores, float *y)
{
    if (type == BF16)
        attend_to_kv(BF16, size, count, keys, to_values, q, scores, y);
    else
        attend_to_kv(FP32, size, count, keys, to_values, q, scores, y);
}

static void normalize(const Norm *norm, int64_t size, const float *x, float *y)
{
    vec sum = zeros(), squares = zeros();
    for (int64_t i = 0; i < size; i += LANES)
        sum = add(sum, load_first(x + i, size - i));
    vec mean = broadcast(sum_of(sum) / size);
    for (int64_t i = 0; i < size; i += LANES) {
        vec off = fill(sub(load_first(x + i, size - i), mean), size - i, 0);
        squares = mul_add(off, off, squares);
    }
    float variance = sum_of(squares) / size;
    float divisor = variance < INFINITY ? sqrtf(variance + norm->epsilon) : NAN;
    vec scale = broadcast(1 / divisor);
    for (int64_t i = 0; i < size; i += LANES) {
        vec off = mul(sub(load_first(x + i, size - i), mean), scale);
        vec result = mul_add(off, load_first(norm->weight + i, size - i),
                         load_first(norm->bias + i, size - i));
        store_first(y + i, size - i, result);
    }
}

INLINE vec greatest_lanes(int64_t size, const float *x)
{
    vec top = broadcast(-INFINITY);
    int64_t i = 0;
    for (; i + LANES <= size; i += LANES)
        top = max(load(x + i), top);
    if (i < size)
        top = max(fill(load_first(x + i, size - i), size - i, -INFINITY), top);
    return top;
}

static float log_sum_exp_of(int64_t size, const float *x)
{
    float top = greatest_of(greatest_lanes(size, x));
    vec total = zeros();
    for (int64_t i = 0; i < size; i += LANES) {
        vec power = exponential_below(load_first(x + i, size - i), broadcast(top));
        total = add(total, fill(power, size - i, 0));
    }
    return top + logf(sum_of(total));
}

/* log(1 + x) for 0 <= x <= 1: 2 artanh(x / (2 + x)), with seven terms of the series. */
INLINE vec log_of_one_and(vec x)
{
    vec s = divide(x, add(x, broadcast(2))), square = mul(s, s);
    vec sum = broadcast(2.f / 13);
    for (int n = 11; n > 0; n -= 2)
        sum = mul_add(sum, square, broadcast(2.f / n));
    return mul(sum, s);
}

static void add_in_log_space(int64_t size, const float *x, float offset, float *y)
{
    for (int64_t i = 0; i < size; i += LANES) {
        vec a = add(load_first(x + i, size - i), broadcast(offset)), b = load_first(y + i, size - i);
        vec top = max(a, b), below = max(sub(min(a, b), top), broadcast(-87)); /* 2 × -inf */
        vec ratio = exponential(below);
        store_first(y + i, size - i, add(top, log_of_one_and(ratio)));
    }
}

static int64_t greatest_index(int64_t size, const float *x)
{
    float top = greatest_of(greatest_lanes(size, x));
    if (!(top > -INFINITY))
        return -1;
    for (int64_t i = 0; i < size; i += LANES) {
        unsigned matches = equal(load_first(x + i, size - i), broadcast(top)) & first(size - i);
        if (matches)
            return i + __builtin_ctz(matches);
    }
    return -1;
}

static void add_candidates(const Candidates *c, int64_t origin, int64_t size, const float *x,
                           float offset)
{
    for (int64_t i = 0; i < size; i += LANES) {
        vec some = add(load_first(x + i, size - i), broadcast(offset));
        unsigned better = greater(some, broadcast(c->sums[c->count - 1])) & first(size - i);
        if (!better)
            continue;
        float sums[LANES];
        store(sums, some);
        for (; better; better &= better - 1) {
            int lane = __builtin_ctz(better);
            if (sums[lane] > c->sums[c->count - 1])
                offer(c, sums[lane], origin, i + lane);
        }
    }
}

#ifdef TILE_ROWS
#include "training_template.h"
#else
#define TRAINING NULL, NULL, NULL, NULL, NULL, NULL, NULL
#endif

#ifndef HAS_BF16
#define round_to_bf16 NULL
#endif
#ifndef MULTIPLY
#define MULTIPLY multiply
#endif

#define TABLE_(name) kernels_##name
#define TABLE(name) TABLE_(name)
#define TEXT_(name) #name
#define TEXT(name) TEXT_(name)

#define KERNELS_WITH(products) \
    PRECISIONS, quantize, round_to_bf16, products, narrow_row, attend, normalize, log_sum_exp_of, \
    add_in_log_space, greatest_index, add_candidates, TRAINING

const Kernels TABLE(NAME) = {TEXT(NAME), KERNELS_WITH(MULTIPLY)};
