/* Kernels for ARM processors with the dot product of bytes, and for those that also multiply matrices
   of bytes. Both have bf16 where the processor has its dot product, which rounds sums to odd. */

#ifdef __aarch64__
#include <arm_neon.h>

#include "kernels.h"
#include "target.h"

USE_TARGET(DOTPROD)
#include "vectors_neon.h"

#define NAME dotprod
#define PRECISIONS (1 << FP32 | 1 << BF16 | 1 << INT8)
#define HAS_BF16
#define ROWS 6
#define PANELS_WITH(rows) ((rows) > 3 ? 1 : (rows) > 1 ? 2 : 4)
#define UNSIGNED_INPUTS 0

INLINE int32x4_t add_bytes(int32x4_t sum, int8x16_t x, int8x16_t weight)
{
    return vdotq_s32(sum, x, weight);
}

INLINE int32x4_t add_halves(int32x4_t sum, int32x4_t x, int32x4_t weight)
{
    return vreinterpretq_s32_f32(vbfdotq_f32(vreinterpretq_f32_s32(sum), vreinterpretq_bf16_s32(x),
                                             vreinterpretq_bf16_s32(weight)));
}

static void round_to_bf16(int64_t size, int64_t words, const float *x, uint16_t *q)
{
    for (int64_t i = 0; i < size; i += LANES)
        store_bf16(q + i, size - i, load_first(x + i, size - i));
    memset(q + size, 0, 2 * (2 * words - size));
}

#include "add_products_neon.h"
#include "kernels_template.h"
END_TARGET

/* i8mm: an instruction multiplies matrices of 2 x 8 and 8 x 2 bytes. */
USE_TARGET(I8MM)
enum { PAIRS = 2 }; /* of rows, whose sums stay in registers */

/* Two words of weights, of four outputs each, become two matrices of two outputs: four sums are
   two outputs of the first row, then of the second. Of the last rows, some are computed twice. */
INLINE void multiply_pairs(const Group *g, const int pairs, int64_t row, int panel)
{
    int32x4_t sums[PAIRS][2 * 4];
    const int64_t words = g->x->words, last = g->x->count - 1; /* an even number of words */
    const int8_t *x[2 * PAIRS];
    for (int r = 0; r < 2 * pairs; r++)
        x[r] = (const int8_t *)g->x->numbers + 4 * words * (row + r < last ? row + r : last);
    for (int p = 0; p < pairs; p++)
        for (int n = 0; n < 8; n++)
            sums[p][n] = vdupq_n_s32(0);
    for (int64_t i = 0; i < words; i += 2) {
        int8x16_t inputs[PAIRS];
        for (int p = 0; p < pairs; p++)
            inputs[p] = vcombine_s8(vld1_s8(x[2 * p] + 4 * i), vld1_s8(x[2 * p + 1] + 4 * i));
        const int32_t *weight = g->weight + i * GROUP + panel * LANES;
        for (int n = 0; n < 4; n++) {
            int32x4_t first = vld1q_s32(weight + 4 * n), next = vld1q_s32(weight + GROUP + 4 * n);
            int8x16_t low = vreinterpretq_s8_s32(vzip1q_s32(first, next));
            int8x16_t high = vreinterpretq_s8_s32(vzip2q_s32(first, next));
            for (int p = 0; p < pairs; p++) {
                sums[p][2 * n] = vmmlaq_s32(sums[p][2 * n], inputs[p], low);
                sums[p][2 * n + 1] = vmmlaq_s32(sums[p][2 * n + 1], inputs[p], high);
            }
        }
    }
    const Group own = *g; /* which stores to y cannot change */
    for (int r = 0; r < 2 * pairs && row + r <= last; r++) {
        ivec sum;
        for (int n = 0; n < 4; n++) {
            int64x2_t a = vreinterpretq_s64_s32(sums[r / 2][2 * n]);
            int64x2_t b = vreinterpretq_s64_s32(sums[r / 2][2 * n + 1]);
            sum.r[n] = vreinterpretq_s32_s64(r % 2 ? vzip2q_s64(a, b) : vzip1q_s64(a, b));
        }
        finish(&own, INT8, panel, row + r, sum);
    }
}

static void multiply_in_pairs(const Group *groups, int64_t count)
{
    const int64_t rows = groups->x->count;
    if (groups->precision != INT8 || rows < 2) {
        multiply(groups, count);
        return;
    }
    for (const Group *g = groups; g < groups + count; g++)
        for (int panel = 0; panel < PANELS && panel * LANES < g->outputs; panel++)
            for (int64_t row = 0; row < rows; row += 2 * PAIRS)
                if (rows - row > 2)
                    multiply_pairs(g, PAIRS, row, panel);
                else
                    multiply_pairs(g, 1, row, panel);
}

const Kernels kernels_i8mm = {"i8mm", KERNELS_WITH(multiply_in_pairs)};
END_TARGET
#endif
