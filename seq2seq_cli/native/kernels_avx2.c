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

/* Many rows: a block of the weights of a panel is copied to the first cache, where all rows are
   multiplied with it before the next block is.

   In INT8 the copy is |weight| and a mask s of all bits where the weight is negative, as the
   logical x ^ s, unlike vpsignb, leaves the units that multiply and add alone: |weight| (x ^ s) is
   weight x, less |weight| where s is set. The sum of these is what a row of zeros gets.

   Two products fit in 16 bits, 2 * 127 * 128. Four of them, of two words, are added before they are
   widened, which saves every other vpmaddwd. They fit too if the squares of the four weights times
   the squares of the four x ^ s are at most 32767^2, by the Cauchy-Schwarz inequality. In the few
   pairs of words where they may not, the sums are corrected. */
enum {
    BLOCK = 128, /* words: 8 KB in FP32, 16 KB in INT8 */
    PAIRS = BLOCK / 2,
    FEW = 24, /* rows that do not pay for a copy */
    TILE = 8, /* rows of INT8 at once, with half of a panel */
    MANY_UNFIT = PAIRS / 8, /* pairs: with so many, every word is widened by itself */
};
_Static_assert(CHUNK % TILE == 0, "a tile has inputs of its own");

/* Two words of the weights of 8 outputs. */
typedef struct {
    __m256i weight[2], sign[2];
} Pair;

typedef struct {
    union {
        ivec weights[BLOCK];
        Pair pairs[2][PAIRS]; /* of both halves of the panel */
    };
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
                            int64_t words, const ivec *w, ivec *all)
{
    ivec sums[ROWS];
#pragma GCC unroll 8
    for (int n = 0; n < rows; n++)
        sums[n] = is_first ? izeros() : all[n];
    for (int64_t i = 0; i < words; i++)
#pragma GCC unroll 8
        for (int n = 0; n < rows; n++) {
            __m256i number = _mm256_castps_si256(_mm256_broadcast_ss(x + n * stride + i));
            sums[n].a = add_numbers(sums[n].a, number, w[i].a);
            __asm__ volatile("" : "+x"(sums[n].a));
            sums[n].b = add_numbers(sums[n].b, number, w[i].b);
            __asm__ volatile("" : "+x"(sums[n].b));
        }
#pragma GCC unroll 8
    for (int n = 0; n < rows; n++)
        all[n] = sums[n];
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

INLINE void multiply_numbers(const Inputs *x, int64_t row, int64_t first, int64_t words, Block *b)
{
    const float *from = (const float *)x->numbers + row * x->words + first;
    ivec *sums = b->sums + row;
    switch (x->count - row) {
    case 1: add_number_tile(1, first == 0, from, x->words, words, b->weights, sums); break;
    case 2: add_number_tile(2, first == 0, from, x->words, words, b->weights, sums); break;
    case 3: add_number_tile(3, first == 0, from, x->words, words, b->weights, sums); break;
    case 4: add_number_tile(4, first == 0, from, x->words, words, b->weights, sums); break;
    default: add_number_tile(ROWS, first == 0, from, x->words, words, b->weights, sums);
    }
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
INLINE void multiply_panel(const int precision, const Group *g, int panel, Block *b)
{
    const int64_t words = g->x->words, count = g->x->count;
    const int64_t tile = precision == INT8 ? TILE : ROWS;
    const int32_t *weight = g->weight + panel * LANES;
    const int32_t *after = panel + 1 < PANELS ? weight + LANES : g->weight + words * GROUP;
    b->zero_row = izeros();
    for (int64_t first = 0, size; first < words; first += size) {
        size = words - first < BLOCK ? words - first : BLOCK;
        const int32_t *next = first + size < words ? weight + (first + size) * GROUP : after;
        if (precision == INT8)
            copy_bytes(b, weight + first * GROUP, size);
        else
            for (int64_t i = 0; i < size; i++)
                b->weights[i] = iload(weight + (first + i) * GROUP);
        for (int64_t row = 0, fetched = 0; row < count; row += tile) {
            for (; fetched < size && fetched * count < (row + tile) * size; fetched++)
                __builtin_prefetch(next + fetched * GROUP, 0, 2);
            if (precision == INT8)
                multiply_bytes_of(g->x, row, first, size, b);
            else
                multiply_numbers(g->x, row, first, size, b);
        }
    }
    const Group own = *g; /* which stores to y cannot change */
    for (int64_t row = 0; row < count; row++) {
        ivec sum = b->sums[row];
        finish(&own, precision, panel, row, precision == INT8 ? isub(sum, b->zero_row) : sum);
    }
}

/* Not inlined, as a thread of musl has room for this block or for sparse inputs, not for both. */
NOINLINE static void multiply_panels(const Group *groups, int64_t count)
{
    const Inputs *x = groups->x;
    const int is_int8 = groups->precision == INT8;
    Block b;
    if (is_int8)
        for (int64_t row = 0; row < x->count; row += TILE)
            find_input_squares(x, row, b.input_squares[row / TILE]);
    for (const Group *g = groups; g < groups + count; g++)
        for (int panel = 0; panel < PANELS && panel * LANES < g->outputs; panel++)
            if (is_int8)
                multiply_panel(INT8, g, panel, &b);
            else
                multiply_panel(FP32, g, panel, &b);
}

static void multiply_in_blocks(const Group *groups, int64_t count)
{
    const Inputs *x = groups->x;
    const int is_too_long = groups->precision == INT8 && x->words > LONGEST; /* for input_squares */
    if (x->count <= FEW || is_too_long)
        multiply(groups, count);
    else if (!multiply_if_sparse(groups, count))
        multiply_panels(groups, count);
}
END_TARGET
#endif
