/* Kernels for ARM processors with the dot product of bytes. */

#ifdef __aarch64__
#include <arm_neon.h>

#include "kernels.h"
#include "target.h"

USE_TARGET(DOTPROD)
#include "vectors_neon.h"

#define NAME dotprod
#define PRECISIONS (1 << FP32 | 1 << INT8)
#define ROWS 6
#define PANELS_WITH(rows) ((rows) > 3 ? 1 : (rows) > 1 ? 2 : 4)
#define UNSIGNED_INPUTS 0

INLINE int32x4_t add_bytes(int32x4_t sum, int8x16_t x, int8x16_t weight)
{
    return vdotq_s32(sum, x, weight);
}

#include "add_products_neon.h"
#include "kernels_template.h"
END_TARGET
#endif
