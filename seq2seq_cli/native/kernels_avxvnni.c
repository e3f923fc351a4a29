/* Kernels for processors with AVX2, FMA and AVX-VNNI. */

#ifdef __x86_64__
#include <immintrin.h>

#include "kernels.h"
#include "target.h"

USE_TARGET("avx2,fma,avxvnni")
#include "vectors_avx2.h"

#define NAME avxvnni
#define PRECISIONS (1 << FP32 | 1 << INT8)
#define ROWS 6
#define PANELS_WITH(rows) ((rows) > 2 ? 1 : (rows) > 1 ? 2 : 4)
#define UNSIGNED_INPUTS 1
enum { AHEAD = 2048 }; /* bytes of weights that are prefetched */

INLINE __m256i add_bytes(__m256i sum, __m256i x, __m256i weight)
{
    return _mm256_dpbusd_avx_epi32(sum, x, weight);
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
