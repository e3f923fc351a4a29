/* Kernels for processors with AVX2 and FMA. */

#ifdef __x86_64__
#include <immintrin.h>

#include "kernels.h"
#include "target.h"

USE_TARGET("avx2,fma")
#include "vectors_avx2.h"

#define NAME avx2
#define PRECISIONS (1 << FP32 | 1 << INT8)
#define ROWS 5
#define PANELS_WITH(rows) ((rows) > 2 ? 1 : (rows) > 1 ? 2 : 4)
#define UNSIGNED_INPUTS 0

/* vpmaddubsw multiplies unsigned by signed numbers and adds pairs in 16 bits. Neither |weight| nor
   input is above 127, and 2 * 127 * 127 fits in 16 bits, so all sums are exact. */
INLINE __m256i add_bytes(__m256i sum, __m256i x, __m256i weight)
{
    __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(weight), _mm256_sign_epi8(x, weight));
    return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}

#include "add_products_avx2.h"

INLINE __m256i add_unsigned_bytes(__m256i sum, __m256i x, __m256i weight)
{
    __m256i pairs = _mm256_maddubs_epi16(x, weight);
    return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}

INLINE ivec add_unsigned(const int precision, ivec sum, int32_t word, ivec weight)
{
    __m256i x = _mm256_set1_epi32(word);
    if (precision == FP32)
        return add_products(FP32, sum, word, weight);
    return (ivec){add_unsigned_bytes(sum.a, x, weight.a), add_unsigned_bytes(sum.b, x, weight.b)};
}

/* Fewer rows wait for weights in INT8, which are read faster as a whole. */
#define MAX_NONZERO_WORDS(precision, rows) ((precision) == FP32 ? 7 : (rows) > ROWS ? 14 : 0)

static void multiply_in_blocks(const Group *groups, int64_t count);
#define MULTIPLY multiply_in_blocks
#include "kernels_template.h"

/* Many rows: all are multiplied with a block of weights that stays in the first cache, before the
   next block is. In FP32 it is a part of half a group, where it lies in memory; in INT8, a copy of a
   part of a panel.

   The copy is |weight| and a mask s of all bits where the weight is negative, as the
   logical x ^ s, unlike vpsignb, leaves the units that multiply and add alone: |weight| (x ^ s) is
   weight x, less |weight| where s is set. The sum of these is what a row of zeros gets.

   Two products fit in 16 bits, 2 * 127 * 128. Four of them, of two words, are added before they are
   widened, which saves every other vpmaddwd. They fit too if the squares of the four weights times
   the squares of the four x ^ s are at most 32767^2, by the Cauchy-Schwarz inequality. In the few
   pairs of words where they may not, the sums are corrected. */
enum {
    BLOCK = 128, /* words of INT8: 16 KB */
    NUMBER_BLOCK = 64, /* words of FP32: 8 KB */
    PAIRS = BLOCK / 2,
    FEW = 24, /* rows of INT8 that do not pay for a copy */
    NUMBER_FEW = 15, /* rows of FP32 that do not pay for reading sums again */
    TILE = 8, /* rows of INT8 at once, with half of a panel */
    NUMBER_TILE = 3, /* rows of FP32 at once, with half a group */
    MANY_UNFIT = PAIRS / 8, /* pairs: with so many, every word is widened by itself */
};
_Static_assert(CHUNK % TILE == 0, "a tile has inputs of its own");

typedef struct {
    __m256 sums[4];
} HalfGroup;

/* Two words of the weights of 8 outputs. */
typedef struct {
    __m256i weight[2], sign[2];
} Pair;

typedef struct {
    Pair pairs[2][PAIRS]; /* of both halves of the panel */
    ivec sums[CHUNK], zero_row;
    /* The greatest sum of the squares of four weights, and of four inputs of a tile. */
    uint16_t squares[PAIRS], input_squares[CHUNK / TILE][LONGEST / 2];
} Block;

INLINE __m256i multiply_bytes(__m256i x, __m256i weight, __m256i sign)
{
    return _mm256_maddubs_epi16(weight, _mm256_xor_si256(x, sign));
}

INLINE __m256i widen_pairs(__m256i pairs)
{
    return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
}

INLINE uint16_t greatest_of_16_bits(__m256i x)
{
    __m128i half = _mm_max_epu16(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    return ~_mm_extract_epi16(_mm_minpos_epu16(_mm_xor_si128(half, _mm_set1_epi16(-1))), 0);
}

INLINE void copy_bytes(Block *b, const int32_t *weight, int64_t words)
{
    const __m256i zero = _mm256_setzero_si256();
    __m256i zero_row[2] = {zero, zero}; /* at least -4 * 127 * PAIRS */
    for (int64_t i = 0; i < words; i += 2) {
        __m256i squares[2] = {zero, zero};
        for (int half = 0; half < 2; half++)
            for (int n = 0; n < 2; n++) {
                const __m256i *from = (const __m256i *)(weight + (i + n) * GROUP) + half;
                __m256i w = _mm256_loadu_si256(from);
                __m256i size = _mm256_abs_epi8(w), sign = _mm256_cmpgt_epi8(zero, w);
                b->pairs[half][i / 2].weight[n] = size;
                b->pairs[half][i / 2].sign[n] = sign;
                squares[half] = _mm256_add_epi16(squares[half], _mm256_maddubs_epi16(size, size));
                zero_row[half] = _mm256_add_epi16(zero_row[half], _mm256_maddubs_epi16(size, sign));
            }
        b->squares[i / 2] = greatest_of_16_bits(_mm256_max_epu16(squares[0], squares[1]));
    }
    b->zero_row = iadd(b->zero_row, (ivec){widen_pairs(zero_row[0]), widen_pairs(zero_row[1])});
}

/* Sums of (|x| + 1)^2, which (x ^ s)^2 does not exceed, for bytes 0 1 4 5 and 2 3 6 7 of each pair
   of words; and two smaller ones. */
INLINE __m256i square_inputs(__m256i x)
{
    __m256i size = _mm256_abs_epi8(x);
    __m256i squares = _mm256_maddubs_epi16(size, size);
    squares = _mm256_add_epi16(squares, _mm256_maddubs_epi16(size, _mm256_set1_epi8(2)));
    squares = _mm256_add_epi16(squares, _mm256_set1_epi16(2));
    return _mm256_adds_epu16(squares, _mm256_srli_epi64(squares, 32)); /* the most is 65536 */
}

INLINE void find_input_squares(const Inputs *x, int64_t row, uint16_t *all)
{
    const int64_t end = row + TILE < x->count ? row + TILE : x->count;
    for (int64_t i = 0; i < x->words; i += LANES) {
        __m256i squares[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
        for (int64_t n = row; n < end; n++) {
            ivec words = iload((const int32_t *)x->numbers + n * x->words + i);
            squares[0] = _mm256_max_epu16(squares[0], square_inputs(words.a));
            squares[1] = _mm256_max_epu16(squares[1], square_inputs(words.b));
        }
        for (int half = 0; half < 2; half++) {
            uint64_t four[4];
            squares[half] = _mm256_max_epu16(squares[half], _mm256_srli_epi64(squares[half], 16));
            memcpy(four, squares + half, sizeof four);
            for (int n = 0; n < 4; n++)
                all[(i + 8 * half) / 2 + n] = four[n];
        }
    }
}

/* Pairs of words whose sums of four products may not fit in 16 bits, a bit for each. */
INLINE uint64_t find_unfit(int64_t pairs, const uint16_t *squares, const uint16_t *input_squares)
{
    uint64_t unfit = 0;
    for (int64_t i = 0; i < pairs; i += 16) {
        __m256i w = _mm256_loadu_si256((const __m256i *)(squares + i));
        __m256i x = _mm256_loadu_si256((const __m256i *)(input_squares + i));
        /* 2^16 * 16383 is 32767^2 - 1 */
        __m256i above = _mm256_subs_epu16(_mm256_mulhi_epu16(w, x), _mm256_set1_epi16(16382));
        __m256i is_fit = _mm256_cmpeq_epi16(above, _mm256_setzero_si256());
        unfit |= (uint64_t)(uint16_t)~_mm_movemask_epi8(_mm_packs_epi16(
                     _mm256_castsi256_si128(is_fit), _mm256_extracti128_si256(is_fit, 1))) << i;
    }
    return unfit & ~0ull >> (64 - pairs);
}

/* The sums stay in registers, as the loops are unrolled before gcc assigns these; the empty
   assembly keeps the order, as others need more registers than there are. */
INLINE void add_number_tile(const int rows, int is_first, const float *x, int64_t stride,
                            int64_t words, const float *w, HalfGroup *all)
{
    __m256 sums[NUMBER_TILE][4];
#pragma GCC unroll 4
    for (int n = 0; n < rows; n++)
#pragma GCC unroll 4
        for (int k = 0; k < 4; k++)
            sums[n][k] = is_first ? _mm256_setzero_ps() : all[n].sums[k];
    for (int64_t i = 0; i < words; i++, w += GROUP) {
        __m256 numbers[NUMBER_TILE];
#pragma GCC unroll 4
        for (int n = 0; n < rows; n++)
            numbers[n] = _mm256_broadcast_ss(x + n * stride + i);
#pragma GCC unroll 4
        for (int k = 0; k < 4; k++) {
            __m256 weight = _mm256_loadu_ps(w + 8 * k);
#pragma GCC unroll 4
            for (int n = 0; n < rows; n++) {
                sums[n][k] = _mm256_fmadd_ps(numbers[n], weight, sums[n][k]);
                __asm__ volatile("" : "+x"(sums[n][k]));
            }
        }
    }
#pragma GCC unroll 4
    for (int n = 0; n < rows; n++)
#pragma GCC unroll 4
        for (int k = 0; k < 4; k++)
            all[n].sums[k] = sums[n][k];
}

INLINE __m256i broadcast_word(const char *x)
{
    int32_t word;
    memcpy(&word, x, sizeof word);
    return _mm256_set1_epi32(word);
}

INLINE void add_byte_tile(const int rows, const int fits, int is_first, const char *x,
                          int64_t stride, int64_t pairs, const Pair *w, __m256i *all)
{
    __m256i sums[TILE];
#pragma GCC unroll 8
    for (int n = 0; n < rows; n++)
        sums[n] = is_first ? _mm256_setzero_si256() : all[2 * n];
    for (int64_t i = 0; i < pairs; i++, w++)
#pragma GCC unroll 8
        for (int n = 0; n < rows; n++) {
            const char *at = x + n * stride + 8 * i;
            __m256i a = multiply_bytes(broadcast_word(at), w->weight[0], w->sign[0]);
            __m256i b = multiply_bytes(broadcast_word(at + 4), w->weight[1], w->sign[1]);
            __m256i sum = fits ? widen_pairs(_mm256_add_epi16(a, b))
                               : _mm256_add_epi32(widen_pairs(a), widen_pairs(b));
            sums[n] = _mm256_add_epi32(sums[n], sum);
            __asm__ volatile("" : "+x"(sums[n]));
        }
#pragma GCC unroll 8
    for (int n = 0; n < rows; n++)
        all[2 * n] = sums[n];
}

/* Replace what add_byte_tile has added for a pair of words. */
NOINLINE static void correct(int64_t rows, const char *x, int64_t stride, const Pair *w,
                             __m256i *all)
{
    for (int64_t n = 0; n < rows; n++) {
        __m256i a = multiply_bytes(broadcast_word(x + n * stride), w->weight[0], w->sign[0]);
        __m256i b = multiply_bytes(broadcast_word(x + n * stride + 4), w->weight[1], w->sign[1]);
        __m256i added = widen_pairs(_mm256_add_epi16(a, b));
        __m256i exact = _mm256_add_epi32(widen_pairs(a), widen_pairs(b));
        all[2 * n] = _mm256_add_epi32(all[2 * n], _mm256_sub_epi32(exact, added));
    }
}

INLINE void multiply_numbers(const Inputs *x, int64_t row, int64_t first, int64_t words,
                             const float *w, HalfGroup *sums)
{
    const float *from = (const float *)x->numbers + row * x->words + first;
    switch (x->count - row) {
    case 1: add_number_tile(1, first == 0, from, x->words, words, w, sums + row); break;
    case 2: add_number_tile(2, first == 0, from, x->words, words, w, sums + row); break;
    default: add_number_tile(NUMBER_TILE, first == 0, from, x->words, words, w, sums + row);
    }
}

/* All rows of half a group. */
INLINE void multiply_half(const Group *g, int half, HalfGroup *sums)
{
    const int64_t words = g->x->words, count = g->x->count;
    const float *weight = (const float *)g->weight + half * GROUP / 2;
    const float *after = half ? weight + words * GROUP - GROUP / 2 : weight + GROUP / 2;
    for (int64_t first = 0, size; first < words; first += size) {
        size = words - first < NUMBER_BLOCK ? words - first : NUMBER_BLOCK;
        const float *next = first + size < words ? weight + (first + size) * GROUP : after;
        for (int64_t row = 0, fetched = 0; row < count; row += NUMBER_TILE) {
            for (; fetched < size && fetched * count < (row + NUMBER_TILE) * size; fetched++) {
                __builtin_prefetch(next + fetched * GROUP, 0, 2);
                __builtin_prefetch(next + fetched * GROUP + LANES, 0, 2);
            }
            multiply_numbers(g->x, row, first, size, weight + first * GROUP, sums);
        }
    }
    const Group own = *g; /* which stores to y cannot change */
    for (int panel = 2 * half; panel < 2 * half + 2 && panel * LANES < own.outputs; panel++)
        for (int64_t row = 0; row < count; row++) {
            const __m256 *sum = sums[row].sums + 2 * (panel % 2);
            finish(&own, FP32, panel, row,
                   (ivec){_mm256_castps_si256(sum[0]), _mm256_castps_si256(sum[1])});
        }
}

NOINLINE static void multiply_halves(const Group *groups, int64_t count)
{
    HalfGroup sums[CHUNK];
    for (const Group *g = groups; g < groups + count; g++)
        for (int half = 0; half < 2 && half * GROUP / 2 < g->outputs; half++)
            multiply_half(g, half, sums);
}

INLINE void add_byte_rows(int64_t rows, int is_first, const char *x, int64_t stride, int64_t pairs,
                          const Pair *w, __m256i *sums)
{
    switch (rows) {
    case 1: add_byte_tile(1, 1, is_first, x, stride, pairs, w, sums); break;
    case 2: add_byte_tile(2, 1, is_first, x, stride, pairs, w, sums); break;
    case 3: add_byte_tile(3, 1, is_first, x, stride, pairs, w, sums); break;
    case 4: add_byte_tile(4, 1, is_first, x, stride, pairs, w, sums); break;
    case 5: add_byte_tile(5, 1, is_first, x, stride, pairs, w, sums); break;
    case 6: add_byte_tile(6, 1, is_first, x, stride, pairs, w, sums); break;
    case 7: add_byte_tile(7, 1, is_first, x, stride, pairs, w, sums); break;
    default: add_byte_tile(TILE, 1, is_first, x, stride, pairs, w, sums);
    }
}

INLINE void multiply_bytes_of(const Inputs *x, int64_t row, int64_t first, int64_t words, Block *b)
{
    const int64_t stride = 4 * x->words, pairs = words / 2, left = x->count - row;
    const int64_t rows = left < TILE ? left : TILE;
    const char *from = (const char *)x->numbers + row * stride + 4 * first;
    uint64_t unfit = find_unfit(pairs, b->squares, b->input_squares[row / TILE] + first / 2);
    const int are_many = rows == TILE && __builtin_popcountll(unfit) >= MANY_UNFIT;
    for (int half = 0; half < 2; half++) {
        const Pair *w = b->pairs[half];
        __m256i *sums = &b->sums[row].a + half;
        if (are_many)
            add_byte_tile(TILE, 0, first == 0, from, stride, pairs, w, sums);
        else
            add_byte_rows(rows, first == 0, from, stride, pairs, w, sums);
        for (uint64_t rest = are_many ? 0 : unfit; rest; rest &= rest - 1) {
            int64_t i = __builtin_ctzll(rest);
            correct(rows, from + 8 * i, stride, w + i, sums);
        }
    }
}

/* All rows of a panel. Meanwhile the weights of the next block are brought to the second cache. */
INLINE void multiply_panel(const Group *g, int panel, Block *b)
{
    const int64_t words = g->x->words, count = g->x->count;
    const int32_t *weight = g->weight + panel * LANES;
    const int32_t *after = panel + 1 < PANELS ? weight + LANES : g->weight + words * GROUP;
    b->zero_row = izeros();
    for (int64_t first = 0, size; first < words; first += size) {
        size = words - first < BLOCK ? words - first : BLOCK;
        const int32_t *next = first + size < words ? weight + (first + size) * GROUP : after;
        copy_bytes(b, weight + first * GROUP, size);
        for (int64_t row = 0, fetched = 0; row < count; row += TILE) {
            for (; fetched < size && fetched * count < (row + TILE) * size; fetched++)
                __builtin_prefetch(next + fetched * GROUP, 0, 2);
            multiply_bytes_of(g->x, row, first, size, b);
        }
    }
    const Group own = *g; /* which stores to y cannot change */
    for (int64_t row = 0; row < count; row++)
        finish(&own, INT8, panel, row, isub(b->sums[row], b->zero_row));
}

/* Not inlined, as a thread of musl has room for this block or for sparse inputs, not for both. */
NOINLINE static void multiply_panels(const Group *groups, int64_t count)
{
    const Inputs *x = groups->x;
    Block b;
    for (int64_t row = 0; row < x->count; row += TILE)
        find_input_squares(x, row, b.input_squares[row / TILE]);
    for (const Group *g = groups; g < groups + count; g++)
        for (int panel = 0; panel < PANELS && panel * LANES < g->outputs; panel++)
            multiply_panel(g, panel, &b);
}

static void multiply_in_blocks(const Group *groups, int64_t count)
{
    const Inputs *x = groups->x;
    const int is_int8 = groups->precision == INT8, few = is_int8 ? FEW : NUMBER_FEW;
    const int is_too_long = is_int8 && x->words > LONGEST; /* for input_squares */
    if (x->count <= few || is_too_long)
        multiply(groups, count);
    else if (multiply_if_sparse(groups, count))
        return;
    else if (is_int8)
        multiply_panels(groups, count);
    else
        multiply_halves(groups, count);
}
END_TARGET
#endif
