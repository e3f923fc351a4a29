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
enum { AHEAD = 2048 }; /* bytes of weights that are prefetched */

/* vpmaddubsw multiplies unsigned by signed numbers and adds pairs in 16 bits. Neither |weight| nor
   input is above 127, and 2 * 127 * 127 fits in 16 bits, so all sums are exact. */
INLINE __m256i add_bytes(__m256i sum, __m256i x, __m256i weight)
{
    __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(weight), _mm256_sign_epi8(x, weight));
    return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}

INLINE __m256i add_numbers(__m256i sum, __m256i x, __m256i weight)
{
    return _mm256_castps_si256(_mm256_fmadd_ps(_mm256_castsi256_ps(x), _mm256_castsi256_ps(weight),
                                               _mm256_castsi256_ps(sum)));
}

INLINE ivec add_products(const int precision, ivec sum, int32_t word, ivec weight)
{
    __m256i x = _mm256_set1_epi32(word);
    if (precision == INT8)
        return (ivec){add_bytes(sum.a, x, weight.a), add_bytes(sum.b, x, weight.b)};
    return (ivec){add_numbers(sum.a, x, weight.a), add_numbers(sum.b, x, weight.b)};
}

#include "kernels_template.h"
END_TARGET
#endif
