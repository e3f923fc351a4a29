/* Vectors of 16 numbers in four registers of NEON (AArch64, which always has FMA). */

#define TILE_ROWS 4 /* whose sums stay in registers, in training */

typedef struct { float32x4_t r[4]; } vec;
typedef struct { int32x4_t r[4]; } ivec;

/* Four statements: with loops over the registers, Clang takes minutes. */
#define AT(place, expression) { enum { i = place }; expression; }
#define EACH(expression) \
    do { AT(0, expression) AT(1, expression) AT(2, expression) AT(3, expression) } while (0)

INLINE vec broadcast(float x)
{
    vec y;
    EACH(y.r[i] = vdupq_n_f32(x));
    return y;
}
INLINE vec zeros(void) { return broadcast(0); }
INLINE vec load(const float *x)
{
    vec y;
    EACH(y.r[i] = vld1q_f32(x + 4 * i));
    return y;
}
INLINE void store(float *y, vec x) { EACH(vst1q_f32(y + 4 * i, x.r[i])); }
INLINE vec add(vec x, vec y)
{
    EACH(x.r[i] = vaddq_f32(x.r[i], y.r[i]));
    return x;
}
INLINE vec sub(vec x, vec y)
{
    EACH(x.r[i] = vsubq_f32(x.r[i], y.r[i]));
    return x;
}
INLINE vec mul(vec x, vec y)
{
    EACH(x.r[i] = vmulq_f32(x.r[i], y.r[i]));
    return x;
}
INLINE vec divide(vec x, vec y)
{
    EACH(x.r[i] = vdivq_f32(x.r[i], y.r[i]));
    return x;
}
INLINE vec mul_add(vec x, vec y, vec z)
{
    EACH(z.r[i] = vfmaq_f32(z.r[i], x.r[i], y.r[i]));
    return z;
}
INLINE vec sub_mul(vec x, vec y, vec z)
{
    EACH(z.r[i] = vfmsq_f32(z.r[i], x.r[i], y.r[i]));
    return z;
}
/* The second number if one is NaN, as on x86. */
INLINE float32x4_t max4(float32x4_t x, float32x4_t y) { return vbslq_f32(vcgtq_f32(x, y), x, y); }
INLINE vec max(vec x, vec y)
{
    EACH(x.r[i] = max4(x.r[i], y.r[i]));
    return x;
}
INLINE vec min(vec x, vec y)
{
    EACH(x.r[i] = vbslq_f32(vcltq_f32(x.r[i], y.r[i]), x.r[i], y.r[i]));
    return x;
}
INLINE vec absolute(vec x)
{
    EACH(x.r[i] = vabsq_f32(x.r[i]));
    return x;
}
INLINE vec round_to_even(vec x)
{
    EACH(x.r[i] = vrndnq_f32(x.r[i]));
    return x;
}
/* Unsigned, as `n` may be anything after the end of a row. */
INLINE vec times_power_of_2(vec x, vec n)
{
    for (int i = 0; i < 4; i++) {
        uint32x4_t whole = vreinterpretq_u32_s32(vcvtnq_s32_f32(n.r[i]));
        uint32x4_t exponent = vshlq_n_u32(vaddq_u32(whole, vdupq_n_u32(127)), 23);
        x.r[i] = vmulq_f32(x.r[i], vreinterpretq_f32_u32(exponent));
    }
    return x;
}
INLINE unsigned bits_of(uint32x4_t mask)
{
    const uint32x4_t bits = {1, 2, 4, 8};
    return vaddvq_u32(vandq_u32(mask, bits));
}
INLINE unsigned greater(vec x, vec y)
{
    unsigned mask = 0;
    EACH(mask |= bits_of(vcgtq_f32(x.r[i], y.r[i])) << 4 * i);
    return mask;
}
INLINE unsigned equal(vec x, vec y)
{
    unsigned mask = 0;
    EACH(mask |= bits_of(vceqq_f32(x.r[i], y.r[i])) << 4 * i);
    return mask;
}
INLINE float sum_of(vec x)
{
    float32x4_t sum = vaddq_f32(vaddq_f32(x.r[0], x.r[2]), vaddq_f32(x.r[1], x.r[3]));
    float32x2_t half = vadd_f32(vget_low_f32(sum), vget_high_f32(sum));
    return vget_lane_f32(half, 0) + vget_lane_f32(half, 1);
}
INLINE float greatest_of(vec x)
{
    float32x4_t top = max4(max4(x.r[0], x.r[2]), max4(x.r[1], x.r[3]));
    float lanes[4];
    vst1q_f32(lanes, top);
    float a = lanes[0] > lanes[2] ? lanes[0] : lanes[2];
    float b = lanes[1] > lanes[3] ? lanes[1] : lanes[3];
    return a > b ? a : b;
}

INLINE vec swap_pairs(vec x)
{
    EACH(x.r[i] = vrev64q_f32(x.r[i]));
    return x;
}

INLINE ivec iload(const int32_t *x)
{
    ivec y;
    EACH(y.r[i] = vld1q_s32(x + 4 * i));
    return y;
}
INLINE ivec izeros(void)
{
    ivec y;
    EACH(y.r[i] = vdupq_n_s32(0));
    return y;
}
INLINE ivec isub(ivec x, ivec y)
{
    EACH(x.r[i] = vsubq_s32(x.r[i], y.r[i]));
    return x;
}
INLINE vec to_float(ivec x)
{
    vec y;
    EACH(y.r[i] = vcvtq_f32_s32(x.r[i]));
    return y;
}
INLINE ivec to_whole(vec x)
{
    ivec y;
    EACH(y.r[i] = vcvtnq_s32_f32(x.r[i]));
    return y;
}
INLINE vec as_vec(ivec x)
{
    vec y;
    EACH(y.r[i] = vreinterpretq_f32_s32(x.r[i]));
    return y;
}
INLINE void store_bytes(uint8_t *y, ivec x, int zero)
{
    int16x8_t low = vcombine_s16(vmovn_s32(x.r[0]), vmovn_s32(x.r[1]));
    int16x8_t high = vcombine_s16(vmovn_s32(x.r[2]), vmovn_s32(x.r[3]));
    int8x16_t bytes = vcombine_s8(vmovn_s16(low), vmovn_s16(high));
    vst1q_u8(y, vaddq_u8(vreinterpretq_u8_s8(bytes), vdupq_n_u8(zero)));
}

INLINE ivec lanes(void)
{
    const int32_t numbers[LANES] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return iload(numbers);
}
INLINE ivec ibroadcast(int32_t x)
{
    ivec y;
    EACH(y.r[i] = vdupq_n_s32(x));
    return y;
}
INLINE ivec iadd(ivec x, ivec y)
{
    EACH(x.r[i] = vaddq_s32(x.r[i], y.r[i]));
    return x;
}
INLINE ivec imul(ivec x, ivec y)
{
    /* Unsigned: to GCC vmulq_s32 is a product of C, whose overflow is undefined. */
    EACH(x.r[i] = vreinterpretq_s32_u32(
             vmulq_u32(vreinterpretq_u32_s32(x.r[i]), vreinterpretq_u32_s32(y.r[i]))));
    return x;
}
INLINE ivec ixor(ivec x, ivec y)
{
    EACH(x.r[i] = veorq_s32(x.r[i], y.r[i]));
    return x;
}
INLINE ivec ishift(ivec x, const int bits)
{
    const int32x4_t left = vdupq_n_s32(-bits);
    EACH(x.r[i] = vreinterpretq_s32_u32(vshlq_u32(vreinterpretq_u32_s32(x.r[i]), left)));
    return x;
}
INLINE vec keep_where(vec x, ivec bits, uint32_t least)
{
    for (int i = 0; i < 4; i++) {
        uint32x4_t is_kept = vcgeq_u32(vreinterpretq_u32_s32(bits.r[i]), vdupq_n_u32(least));
        x.r[i] = vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(x.r[i]), is_kept));
    }
    return x;
}
INLINE vec widen(const uint16_t *x)
{
    vec y;
    EACH(y.r[i] = vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(x + 4 * i), 16)));
    return y;
}
INLINE void narrow(uint16_t *y, vec x)
{
    for (int i = 0; i < 4; i++) {
        uint32x4_t bits = vreinterpretq_u32_f32(x.r[i]);
        uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
        bits = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
        vst1_u16(y + 4 * i, vshrn_n_u32(bits, 16));
    }
}

#include "vectors_tails.h"
