/* Kernels for all processors. */

#include "kernels.h"
#include "vectors_plain.h"

#define NAME plain
#define PRECISIONS (1 << FP32 | 1 << INT8)
#define ROWS 2
#define PANELS_WITH(rows) 1
#define UNSIGNED_INPUTS 0

typedef struct { int16_t r[2 * LANES]; } Halves;

/* Bytes as the halves of words, in which the sum of two products still fits. */
INLINE ivec add_bytes(ivec sum, int32_t word, ivec weight)
{
    Halves w, sums;
    int16_t x[4];
    int32_t pairs[LANES];
    memcpy(&w, &weight, sizeof w);
    for (int k = 0; k < 4; k++)
        x[k] = (int8_t)(word >> 8 * k);
    Halves even, odd;
    for (int i = 0; i < 2 * LANES; i++) {
        even.r[i] = i % 2 ? x[2] : x[0];
        odd.r[i] = i % 2 ? x[3] : x[1];
    }
    for (int i = 0; i < 2 * LANES; i++) {
        int16_t low = (int16_t)((uint16_t)w.r[i] << 8), high = w.r[i];
        sums.r[i] = (int16_t)((int16_t)(low >> 8) * even.r[i] + (int16_t)(high >> 8) * odd.r[i]);
    }
    memcpy(pairs, &sums, sizeof pairs);
    for (int i = 0; i < LANES; i++)
        sum[i] += ((int32_t)((uint32_t)pairs[i] << 16) >> 16) + (pairs[i] >> 16);
    return sum;
}

INLINE ivec add_products(const int precision, ivec sum, int32_t word, ivec weight)
{
    if (precision == INT8)
        return add_bytes(sum, word, weight);
    float x;
    memcpy(&x, &word, sizeof x);
    return (ivec)mul_add(broadcast(x), (vec)weight, (vec)sum);
}

#include "kernels_template.h"
