/* Vectors of 16 numbers in a register of AVX-512. */

#define TILE_ROWS 8 /* whose sums stay in registers, in training */

typedef __m512 vec;
typedef __m512i ivec;

INLINE unsigned first(int64_t count)
{
    return count >= LANES ? 0xffff : (1u << count) - 1;
}

INLINE vec zeros(void) { return _mm512_setzero_ps(); }
INLINE vec broadcast(float x) { return _mm512_set1_ps(x); }
INLINE vec load(const float *x) { return _mm512_loadu_ps(x); }
INLINE void store(float *y, vec x) { _mm512_storeu_ps(y, x); }
INLINE vec load_first(const float *x, int64_t count)
{
    return _mm512_maskz_loadu_ps(first(count), x);
}
INLINE void store_first(float *y, int64_t count, vec x)
{
    _mm512_mask_storeu_ps(y, first(count), x);
}
INLINE vec fill(vec x, int64_t count, float rest)
{
    return _mm512_mask_blend_ps(first(count), _mm512_set1_ps(rest), x);
}
INLINE vec add(vec a, vec b) { return _mm512_add_ps(a, b); }
INLINE vec sub(vec a, vec b) { return _mm512_sub_ps(a, b); }
INLINE vec mul(vec a, vec b) { return _mm512_mul_ps(a, b); }
INLINE vec divide(vec a, vec b) { return _mm512_div_ps(a, b); }
INLINE vec mul_add(vec a, vec b, vec c) { return _mm512_fmadd_ps(a, b, c); }
INLINE vec sub_mul(vec a, vec b, vec c) { return _mm512_fnmadd_ps(a, b, c); }
INLINE vec max(vec a, vec b) { return _mm512_max_ps(a, b); }
INLINE vec min(vec a, vec b) { return _mm512_min_ps(a, b); }
INLINE vec absolute(vec x) { return _mm512_abs_ps(x); }
INLINE vec round_to_even(vec x) { return _mm512_roundscale_ps(x, 8); }
INLINE vec times_power_of_2(vec x, vec n) { return _mm512_scalef_ps(x, n); }
INLINE unsigned greater(vec a, vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ); }
INLINE unsigned equal(vec a, vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }

INLINE __m128 sum_of_quarters(vec x)
{
    __m256 half = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    return _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
}
#include "vectors_sums_x86.h"
INLINE float greatest_of(vec x)
{
    __m256 half = _mm256_max_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    __m128 quarter = _mm_max_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    quarter = _mm_max_ps(quarter, _mm_movehl_ps(quarter, quarter));
    return _mm_cvtss_f32(_mm_max_ss(quarter, _mm_movehdup_ps(quarter)));
}

INLINE vec swap_pairs(vec x) { return _mm512_permute_ps(x, 0xb1); }

INLINE ivec izeros(void) { return _mm512_setzero_si512(); }
INLINE ivec iload(const int32_t *x) { return _mm512_loadu_si512(x); }
INLINE ivec isub(ivec a, ivec b) { return _mm512_sub_epi32(a, b); }
INLINE vec to_float(ivec x) { return _mm512_cvtepi32_ps(x); }
INLINE ivec to_whole(vec x) { return _mm512_cvtps_epi32(x); }
INLINE vec as_vec(ivec x) { return _mm512_castsi512_ps(x); }
INLINE void store_bytes(uint8_t *y, ivec x, int zero)
{
    x = _mm512_add_epi32(x, _mm512_set1_epi32(zero));
    _mm_storeu_si128((__m128i *)y, _mm512_cvtepi32_epi8(x));
}

INLINE ivec lanes(void)
{
    return _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
}
INLINE ivec ibroadcast(int32_t x) { return _mm512_set1_epi32(x); }
INLINE ivec iadd(ivec a, ivec b) { return _mm512_add_epi32(a, b); }
INLINE ivec imul(ivec a, ivec b) { return _mm512_mullo_epi32(a, b); }
INLINE ivec ixor(ivec a, ivec b) { return _mm512_xor_si512(a, b); }
INLINE ivec ishift(ivec x, const int bits) { return _mm512_srli_epi32(x, bits); }
INLINE vec keep_where(vec x, ivec bits, uint32_t least)
{
    return _mm512_maskz_mov_ps(_mm512_cmpge_epu32_mask(bits, _mm512_set1_epi32(least)), x);
}
INLINE vec load_bf16(const uint16_t *x, int64_t count)
{
    __m256i halves = _mm256_maskz_loadu_epi16(first(count), x);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}
/* To the nearest, ties to even; NaN stays NaN as its upper half is not all ones. */
INLINE void store_bf16(uint16_t *y, int64_t count, vec x)
{
    __m512i bits = _mm512_castps_si512(x), upper = _mm512_srli_epi32(bits, 16);
    __m512i odd = _mm512_and_si512(upper, _mm512_set1_epi32(1));
    bits = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    _mm256_mask_storeu_epi16(y, first(count), _mm512_cvtepi32_epi16(_mm512_srli_epi32(bits, 16)));
}
