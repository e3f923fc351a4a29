/* Kernels for processors with AVX2, FMA and AVX-VNNI. */

#include "kernels.h"

#ifdef HAS_AVXVNNI
#include <immintrin.h>

#include "target.h"

USE_TARGET("avx2,fma,avxvnni")
#include "vectors_avx2.h"

#define NAME avxvnni
#define PRECISIONS (1 << FP32 | 1 << INT8)
#define ROWS 6
#define PANELS_WITH(rows) ((rows) > 2 ? 1 : (rows) > 1 ? 2 : 4)
#define UNSIGNED_INPUTS 1

INLINE __m256i add_bytes(__m256i sum, __m256i x, __m256i weight)
{
    return _mm256_dpbusd_avx_epi32(sum, x, weight);
}

#include "add_products_avx2.h"
#define MAX_NONZERO_WORDS(precision, rows) ((rows) > ROWS ? 10 : 0)
#define add_unsigned add_products
static void multiply_in_precision(const Group *groups, int64_t count);
#define MULTIPLY multiply_in_precision
#include "kernels_template.h"

extern const Kernels kernels_avx2;

/* FP32 is as with AVX2 alone. */
static void multiply_in_precision(const Group *groups, int64_t count)
{
    if (groups->precision == FP32)
        kernels_avx2.multiply(groups, count);
    else
        multiply(groups, count);
}
END_TARGET
#endif
