/* Kernels for all processors. */

#include "kernels.h"
#if defined(__GNUC__) && !defined(__clang__)
/* With -O3, GCC 12 for x86-64 rounds two of 16 numbers wrongly now and then. */
#pragma GCC optimize("O2", "tree-loop-vectorize")
#endif
#include "vectors_plain.h"

#define NAME plain
#define PRECISIONS (1 << FP32 | 1 << INT8)
#define ROWS 2
#define PANELS_WITH(rows) 1
#define UNSIGNED_INPUTS 0
enum { AHEAD = 2048 }; /* bytes of weights that are prefetched */

INLINE ivec add_products(const int precision, ivec sum, int32_t word, ivec weight)
{
    if (precision == INT8) {
        int8_t x[4], w[LANES][4];
        memcpy(x, &word, sizeof x);
        memcpy(w, &weight, sizeof w);
        for (int i = 0; i < LANES; i++)
            sum.r[i] += x[0] * w[i][0] + x[1] * w[i][1] + x[2] * w[i][2] + x[3] * w[i][3];
        return sum;
    }
    float x;
    memcpy(&x, &word, sizeof x);
    vec result = mul_add(broadcast(x), as_vec(weight), as_vec(sum));
    memcpy(&sum, &result, sizeof sum);
    return sum;
}

#include "kernels_template.h"
