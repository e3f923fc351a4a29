/* Vectors of 16 numbers in two registers of AVX2 with FMA. */

#define TILE_ROWS 4 /* whose sums stay in registers, in training */

typedef struct { __m256 a, b; } vec;
typedef struct { __m256i a, b; } ivec;

#define EACH(operation, x, y) ((vec){operation(x.a, y.a), operation(x.b, y.b)})

INLINE vec broadcast(float x) { return (vec){_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
INLINE vec zeros(void) { return (vec){_mm256_setzero_ps(), _mm256_setzero_ps()}; }
INLINE vec load(const float *x) { return (vec){_mm256_loadu_ps(x), _mm256_loadu_ps(x + 8)}; }
INLINE void store(float *y, vec x)
{
    _mm256_storeu_ps(y, x.a);
    _mm256_storeu_ps(y + 8, x.b);
}
INLINE vec add(vec x, vec y) { return EACH(_mm256_add_ps, x, y); }
INLINE vec sub(vec x, vec y) { return EACH(_mm256_sub_ps, x, y); }
INLINE vec mul(vec x, vec y) { return EACH(_mm256_mul_ps, x, y); }
INLINE vec divide(vec x, vec y) { return EACH(_mm256_div_ps, x, y); }
INLINE vec max(vec x, vec y) { return EACH(_mm256_max_ps, x, y); }
INLINE vec min(vec x, vec y) { return EACH(_mm256_min_ps, x, y); }
INLINE vec mul_add(vec x, vec y, vec z)
{
    return (vec){_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
INLINE vec sub_mul(vec x, vec y, vec z)
{
    return (vec){_mm256_fnmadd_ps(x.a, y.a, z.a), _mm256_fnmadd_ps(x.b, y.b, z.b)};
}
INLINE vec absolute(vec x)
{
    vec sign = broadcast(-0.f);
    return (vec){_mm256_andnot_ps(sign.a, x.a), _mm256_andnot_ps(sign.b, x.b)};
}
INLINE vec round_to_even(vec x)
{
    return (vec){_mm256_round_ps(x.a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
                 _mm256_round_ps(x.b, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
INLINE __m256 power_of_2(__m256 n)
{
    __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23));
}
INLINE vec times_power_of_2(vec x, vec n)
{
    return mul(x, (vec){power_of_2(n.a), power_of_2(n.b)});
}
INLINE unsigned greater(vec x, vec y)
{
    return _mm256_movemask_ps(_mm256_cmp_ps(x.a, y.a, _CMP_GT_OQ)) |
           _mm256_movemask_ps(_mm256_cmp_ps(x.b, y.b, _CMP_GT_OQ)) << 8;
}
INLINE unsigned equal(vec x, vec y)
{
    return _mm256_movemask_ps(_mm256_cmp_ps(x.a, y.a, _CMP_EQ_OQ)) |
           _mm256_movemask_ps(_mm256_cmp_ps(x.b, y.b, _CMP_EQ_OQ)) << 8;
}
INLINE __m128 sum_of_quarters(vec x)
{
    __m256 half = _mm256_add_ps(x.a, x.b);
    return _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
}
#include "vectors_sums_x86.h"
INLINE float greatest_of(vec x)
{
    __m256 half = _mm256_max_ps(x.a, x.b);
    __m128 quarter = _mm_max_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    quarter = _mm_max_ps(quarter, _mm_movehl_ps(quarter, quarter));
    return _mm_cvtss_f32(_mm_max_ss(quarter, _mm_movehdup_ps(quarter)));
}

INLINE vec swap_pairs(vec x)
{
    return (vec){_mm256_permute_ps(x.a, 0xb1), _mm256_permute_ps(x.b, 0xb1)};
}

INLINE ivec izeros(void) { return (ivec){_mm256_setzero_si256(), _mm256_setzero_si256()}; }
INLINE ivec iload(const int32_t *x)
{
    return (ivec){_mm256_loadu_si256((const __m256i *)x),
                  _mm256_loadu_si256((const __m256i *)(x + 8))};
}
INLINE ivec isub(ivec x, ivec y)
{
    return (ivec){_mm256_sub_epi32(x.a, y.a), _mm256_sub_epi32(x.b, y.b)};
}
INLINE vec to_float(ivec x) { return (vec){_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
INLINE ivec to_whole(vec x) { return (ivec){_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b)}; }
INLINE vec as_vec(ivec x) { return (vec){_mm256_castsi256_ps(x.a), _mm256_castsi256_ps(x.b)}; }
INLINE void store_bytes(uint8_t *y, ivec x, int zero)
{
    __m256i words = _mm256_packs_epi32(x.a, x.b); /* lanes 0-3, 8-11, 4-7, 12-15 */
    words = _mm256_permute4x64_epi64(words, 0xd8);
    words = _mm256_add_epi16(words, _mm256_set1_epi16(zero));
    words = _mm256_and_si256(words, _mm256_set1_epi16(0xff));
    __m128i bytes = _mm_packus_epi16(_mm256_castsi256_si128(words),
                                     _mm256_extracti128_si256(words, 1));
    _mm_storeu_si128((__m128i *)y, bytes);
}

INLINE ivec lanes(void)
{
    return (ivec){_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7),
                  _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15)};
}
INLINE ivec ibroadcast(int32_t x) { return (ivec){_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
INLINE ivec iadd(ivec x, ivec y)
{
    return (ivec){_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)};
}
INLINE ivec imul(ivec x, ivec y)
{
    return (ivec){_mm256_mullo_epi32(x.a, y.a), _mm256_mullo_epi32(x.b, y.b)};
}
INLINE ivec ixor(ivec x, ivec y)
{
    return (ivec){_mm256_xor_si256(x.a, y.a), _mm256_xor_si256(x.b, y.b)};
}
INLINE ivec ishift(ivec x, const int bits)
{
    return (ivec){_mm256_srli_epi32(x.a, bits), _mm256_srli_epi32(x.b, bits)};
}
INLINE __m256 keep8(__m256 x, __m256i bits, __m256i least)
{
    __m256i is_kept = _mm256_cmpeq_epi32(_mm256_max_epu32(bits, least), bits);
    return _mm256_and_ps(x, _mm256_castsi256_ps(is_kept));
}
INLINE vec keep_where(vec x, ivec bits, uint32_t least)
{
    __m256i all = _mm256_set1_epi32(least);
    return (vec){keep8(x.a, bits.a, all), keep8(x.b, bits.b, all)};
}
INLINE __m256 widen8(const uint16_t *x)
{
    __m256i words = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)x));
    return _mm256_castsi256_ps(_mm256_slli_epi32(words, 16));
}
INLINE __m256i narrow8(__m256 x)
{
    __m256i bits = _mm256_castps_si256(x), upper = _mm256_srli_epi32(bits, 16);
    __m256i odd = _mm256_and_si256(upper, _mm256_set1_epi32(1));
    bits = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    return _mm256_srli_epi32(bits, 16);
}
INLINE vec widen(const uint16_t *x) { return (vec){widen8(x), widen8(x + 8)}; }
INLINE void narrow(uint16_t *y, vec x)
{
    __m256i halves = _mm256_packus_epi32(narrow8(x.a), narrow8(x.b)); /* 0-3, 8-11, 4-7, 12-15 */
    _mm256_storeu_si256((__m256i *)y, _mm256_permute4x64_epi64(halves, 0xd8));
}

#define HAS_FILL_AND_SUMS
INLINE vec fill(vec x, int64_t count, float rest)
{
    ivec all = lanes();
    vec y = broadcast(rest);
    __m256i end = _mm256_set1_epi32(count < LANES ? count : LANES);
    return (vec){_mm256_blendv_ps(y.a, x.a, _mm256_castsi256_ps(_mm256_cmpgt_epi32(end, all.a))),
                 _mm256_blendv_ps(y.b, x.b, _mm256_castsi256_ps(_mm256_cmpgt_epi32(end, all.b)))};
}

#include "vectors_tails.h"
