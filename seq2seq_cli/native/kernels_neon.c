/* Kernels for ARM processors with 64 bits. */

#ifdef __aarch64__
#include <arm_neon.h>

#include "kernels.h"
#include "vectors_neon.h"

#define NAME neon
#define PRECISIONS (1 << FP32 | 1 << INT8)
#define ROWS 6
#define PANELS_WITH(rows) ((rows) > 3 ? 1 : (rows) > 1 ? 2 : 4)
#define UNSIGNED_INPUTS 0

/* Each of four sums gets the products of its word's bytes. */
INLINE int32x4_t add_bytes(int32x4_t sum, int8x16_t x, int8x16_t weight)
{
    int16x8_t low = vmull_s8(vget_low_s8(x), vget_low_s8(weight));
    int16x8_t high = vmull_high_s8(x, weight);
    return vaddq_s32(sum, vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(high)));
}

#include "add_products_neon.h"
#include "kernels_template.h"
#endif
