/* Products with inputs that are mostly 0, as after ReLU (Li et al. 2023, "The Lazy Neuron
   Phenomenon"): words of zeros are skipped, which changes no sum of finite numbers. In INT8, inputs must not
   be negative; they are unsigned numbers in all sets then. A set defines

   MAX_NONZERO_WORDS(precision, rows)  most words other than 0 for this to be faster, of 16
   add_unsigned                        add_products for words of unsigned numbers */

enum {
    BITS = 64,
    LONGEST = 64 * BITS, /* words of a row */
};

typedef struct {
    uint64_t words[LONGEST / BITS][CHUNK]; /* of each row: a bit for each word that is not 0 */
    ivec sums[CHUNK][PANELS];
} Sparse;

/* A word of inputs that are 0. */
#define ZERO(precision) (UNSIGNED_INPUTS && (precision) == INT8 ? (int32_t)0x80808080 : 0)

INLINE int32_t word_at(const int precision, const Inputs *x, int64_t i)
{
    int32_t word;
    memcpy(&word, (const char *)x->numbers + 4 * i, sizeof word);
    return word ^ ZERO(precision);
}

/* Which of 16 words are not 0, a bit for each. */
INLINE uint64_t find_words(const int precision, const Inputs *x, int64_t i, int64_t count)
{
    vec some;
    if (precision == FP32)
        some = load_first((const float *)x->numbers + i, count);
    else
        some = to_float(ixor(iload((const int32_t *)x->numbers + i), ibroadcast(ZERO(precision))));
    return ~equal(some, zeros()) & first(count);
}

INLINE int is_sparse(const int precision, const Inputs *x, Sparse *s)
{
    const int64_t words = x->words;
    int64_t found = 0, most = x->count * words * MAX_NONZERO_WORDS(precision, x->count) / 16;
    if (words > LONGEST || !most)
        return 0;
    for (int64_t row = 0; row < x->count; row++) {
        int64_t before = found;
        int32_t signs = 0;
        for (int64_t i = 0; precision == INT8 && i < words; i++)
            signs |= word_at(precision, x, row * words + i) & 0x80808080;
        for (int64_t start = 0; start < words; start += BITS) {
            uint64_t bits = 0;
            for (int64_t i = start; i < words && i < start + BITS; i += LANES)
                bits |= find_words(precision, x, row * words + i, words - i) << (i - start);
            s->words[start / BITS][row] = bits;
            found += __builtin_popcountll(bits);
        }
        if (signs || found > most || found == before + words) /* as in almost all other inputs */
            return 0;
    }
    return 1;
}

INLINE void prefetch_word(const int32_t *weight)
{
    for (int p = 0; p < PANELS; p++)
        __builtin_prefetch(weight + p * LANES);
}

/* Prefetch what a row, one of few, multiplies after `start`; or its share of all words. */
INLINE void prefetch_next(const Group *g, const Sparse *s, int64_t start, int64_t row)
{
    const int64_t words = g->x->words, rows = g->x->count;
    const int64_t next = start + BITS < words ? start + BITS : 0;
    const int32_t *weight = g->weight + (next ? next : words) * GROUP;
    if (rows <= ROWS)
        for (uint64_t bits = s->words[next / BITS][row]; bits; bits &= bits - 1)
            prefetch_word(weight + __builtin_ctzll(bits) * GROUP);
    else
        for (int64_t i = row * BITS / rows; i < (row + 1) * BITS / rows; i++)
            prefetch_word(weight + i * GROUP);
}

INLINE void multiply_words(const int precision, const Group *g, Sparse *s, int64_t start,
                           int64_t row)
{
    const int32_t *weight = g->weight + start * GROUP;
    ivec sums[PANELS]; /* in registers */
#pragma GCC unroll 4
    for (int p = 0; p < PANELS; p++)
        sums[p] = s->sums[row][p];
    for (uint64_t bits = s->words[start / BITS][row]; bits; bits &= bits - 1) {
        int64_t i = __builtin_ctzll(bits);
        int32_t word = word_at(precision, g->x, row * g->x->words + start + i);
#pragma GCC unroll 4
        for (int p = 0; p < PANELS; p++)
            sums[p] = add_unsigned(precision, sums[p], word, iload(weight + i * GROUP + p * LANES));
    }
#pragma GCC unroll 4
    for (int p = 0; p < PANELS; p++)
        s->sums[row][p] = sums[p];
}

INLINE void multiply_sparse(const int precision, const Group *g, Sparse *s)
{
    const int64_t words = g->x->words, rows = g->x->count;
    for (int64_t row = 0; row < rows; row++)
        for (int p = 0; p < PANELS; p++) /* `finish` subtracts the shift */
            s->sums[row][p] = ZERO(precision) ? iload(g->shift + p * LANES) : izeros();
    for (int64_t start = 0; start < words; start += BITS)
        for (int64_t row = 0; row < rows; row++) {
            prefetch_next(g, s, start, row);
            multiply_words(precision, g, s, start, row);
        }
    const Group own = *g; /* which stores to y cannot change */
    for (int panel = 0; panel < PANELS && panel * LANES < own.outputs; panel++)
        for (int64_t row = 0; row < rows; row++)
            finish(&own, precision, panel, row, s->sums[row][panel]);
}

INLINE int multiply_in_if_sparse(const int precision, const Group *groups, int64_t count)
{
    Sparse s;
    if (!is_sparse(precision, groups->x, &s))
        return 0;
    for (const Group *g = groups; g < groups + count; g++)
        multiply_sparse(precision, g, &s);
    return 1;
}

/* Multiply groups if their inputs are sparse. */
NOINLINE static int multiply_if_sparse(const Group *groups, int64_t count)
{
    switch (groups->precision) {
    case INT8: return multiply_in_if_sparse(INT8, groups, count);
    case FP32: return multiply_in_if_sparse(FP32, groups, count);
    default: return 0;
    }
}
