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
   weight x, less |weight| where s is set. The sum of these is what a row of zeros gets. Pairs stay
   within 2 * 127 * 128. */
enum {
    BLOCK = 128, /* vectors: 8 KB */
    FEW = 24,    /* rows that do not pay for a copy */
};

typedef struct {
    ivec weights[BLOCK], sums[CHUNK], zero_row;
} Block;

/* In assembly, as compilers use more registers than there are for another order. */
INLINE __m256i add_copied(const int precision, __m256i sum, __m256i x, __m256i weight,
                          const __m256i *sign)
{
    if (precision == FP32) {
        sum = add_numbers(sum, x, weight);
        __asm__ volatile("" : "+x"(sum));
        return sum;
    }
    __m256i pairs;
    __asm__("vpxor %2, %1, %0" : "=x"(pairs) : "x"(x), "m"(*sign));
    pairs = _mm256_maddubs_epi16(weight, pairs);
    pairs = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
    __asm__ volatile("vpaddd %1, %0, %0" : "+x"(sum) : "x"(pairs));
    return sum;
}

INLINE void copy_weights(const int precision, Block *b, const int32_t *weight, int64_t words)
{
    for (int64_t i = 0; i < words; i++) {
        ivec w = iload(weight + i * GROUP);
        if (precision == FP32) {
            b->weights[i] = w;
            continue;
        }
        __m256i zero = _mm256_setzero_si256();
        b->weights[2 * i] = (ivec){_mm256_abs_epi8(w.a), _mm256_abs_epi8(w.b)};
        b->weights[2 * i + 1] = (ivec){_mm256_cmpgt_epi8(zero, w.a), _mm256_cmpgt_epi8(zero, w.b)};
        b->zero_row.a = add_copied(precision, b->zero_row.a, zero, b->weights[2 * i].a,
                                   &b->weights[2 * i + 1].a);
        b->zero_row.b = add_copied(precision, b->zero_row.b, zero, b->weights[2 * i].b,
                                   &b->weights[2 * i + 1].b);
    }
}

/* The sums stay in registers, as the loops are unrolled before gcc assigns these. */
INLINE void add_block(const int precision, const int rows, const char *x, int64_t stride,
                      int64_t words, const __m256i *w, __m256i *all)
{
    const int per_word = precision == INT8 ? 4 : 2;
    __m256i sums[2 * ROWS];
#pragma GCC unroll 16
    for (int n = 0; n < 2 * rows; n++)
        sums[n] = all[n];
    for (int64_t i = 0; i < words; i++, w += per_word)
#pragma GCC unroll 16
        for (int n = 0; n < 2 * rows; n++) {
            int32_t word;
            memcpy(&word, x + n / 2 * stride + 4 * i, sizeof word);
            sums[n] = add_copied(precision, sums[n], _mm256_set1_epi32(word), w[n % 2],
                                 w + per_word - 2 + n % 2);
        }
#pragma GCC unroll 16
    for (int n = 0; n < 2 * rows; n++)
        all[n] = sums[n];
}

INLINE void multiply_block(const int precision, int64_t rows, const char *x, int64_t stride,
                           int64_t words, const ivec *weights, ivec *sums)
{
    const __m256i *w = &weights->a;
    switch (rows) {
    case 1: add_block(precision, 1, x, stride, words, w, &sums->a); break;
    case 2: add_block(precision, 2, x, stride, words, w, &sums->a); break;
    case 3: add_block(precision, 3, x, stride, words, w, &sums->a); break;
    case 4: add_block(precision, 4, x, stride, words, w, &sums->a); break;
    default: add_block(precision, ROWS, x, stride, words, w, &sums->a);
    }
}

/* All rows of a panel. Meanwhile the weights of the next block are brought to the second cache. */
INLINE void multiply_panel(const int precision, const Group *g, int panel, Block *b)
{
    const int64_t words = g->x->words, count = g->x->count, stride = 4 * words;
    const int64_t most = precision == INT8 ? BLOCK / 2 : BLOCK;
    const int32_t *weight = g->weight + panel * LANES;
    const int32_t *after = panel + 1 < PANELS ? weight + LANES : g->weight + words * GROUP;
    memset(b->sums, 0, count * sizeof *b->sums);
    b->zero_row = izeros();
    for (int64_t first = 0, size; first < words; first += size) {
        size = words - first < most ? words - first : most;
        const int32_t *next = first + size < words ? weight + (first + size) * GROUP : after;
        copy_weights(precision, b, weight + first * GROUP, size);
        const char *x = (const char *)g->x->numbers + 4 * first;
        for (int64_t row = 0, fetched = 0; row < count; row += ROWS) {
            for (; fetched * count < (row + ROWS) * size; fetched++)
                __builtin_prefetch(next + fetched * GROUP, 0, 2);
            multiply_block(precision, count - row, x + row * stride, stride, size, b->weights,
                           b->sums + row);
        }
    }
    for (int64_t row = 0; row < count; row++) {
        ivec sum = b->sums[row];
        finish(g, precision, panel, row, precision == INT8 ? isub(sum, b->zero_row) : sum);
    }
}

static void multiply_in_blocks(const Group *groups, int64_t count)
{
    if (groups->x->count <= FEW) {
        multiply(groups, count);
        return;
    }
    if (multiply_if_sparse(groups, count))
        return;
    Block b;
    for (const Group *g = groups; g < groups + count; g++)
        for (int panel = 0; panel < PANELS && panel * LANES < g->outputs; panel++)
            if (g->precision == INT8)
                multiply_panel(INT8, g, panel, &b);
            else
                multiply_panel(FP32, g, panel, &b);
}
END_TARGET
#endif
