/* Instructions of AVX-512, AVX-VNNI and AMX in C, for processors that have AVX2 and FMA.

   The compiler includes this file before every file, so that the results of kernels_avx512.c and
   kernels_avxvnni.c can be tested on all x86-64 processors. It has the instructions that they use, in
   the forms in which they use them; another one is an error of the compiler, as its target lacks it,
   or ends the program. */

#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef float Floats __attribute__((vector_size(64)));
typedef int32_t Words __attribute__((vector_size(64)));
typedef uint32_t Unsigned __attribute__((vector_size(64)));
#define EMULATED static inline __attribute__((always_inline, unused))
#define FOR_LANES for (int i = 0; i < 16; i++)

/* A function of AVX, for each half. */
#define WITH_HALVES(name, half, ...) \
    EMULATED __m512 name(__VA_ARGS__) \
    { \
        __m512 y; \
        for (int h = 0; h < 2; h++) \
            ((__m256 *)&y)[h] = half; \
        return y; \
    }
#define HALF(x) (((const __m256 *)&x)[h])

WITH_HALVES(emulated_fma, _mm256_fmadd_ps(HALF(a), HALF(b), HALF(c)), __m512 a, __m512 b, __m512 c)
WITH_HALVES(emulated_fnma, _mm256_fnmadd_ps(HALF(a), HALF(b), HALF(c)), __m512 a, __m512 b, __m512 c)
WITH_HALVES(emulated_max, _mm256_max_ps(HALF(a), HALF(b)), __m512 a, __m512 b)
WITH_HALVES(emulated_min, _mm256_min_ps(HALF(a), HALF(b)), __m512 a, __m512 b)
WITH_HALVES(emulated_round, _mm256_round_ps(HALF(a), 8), __m512 a)
WITH_HALVES(emulated_swap, _mm256_permute_ps(HALF(a), 0xb1), __m512 a)
WITH_HALVES(emulated_whole, (__m256)_mm256_cvtps_epi32(HALF(a)), __m512 a)

EMULATED __m512 emulated_scale(__m512 a, __m512 b)
{
    FOR_LANES
    {
        if (isnan(b[i]))
            a[i] = b[i];
        else if (isinf(b[i]))
            a[i] *= b[i] > 0 ? b[i] : 0; /* NaN for 0 times infinity */
        else
            a[i] = ldexpf(a[i], (int)fminf(fmaxf(floorf(b[i]), -1000), 1000));
    }
    return a;
}

#define _mm512_setzero_ps() ((__m512){0})
#define _mm512_set1_ps(x) ((__m512){0} + (float)(x))
#define _mm512_add_ps(a, b) ((a) + (b))
#define _mm512_sub_ps(a, b) ((a) - (b))
#define _mm512_mul_ps(a, b) ((a) * (b))
#define _mm512_div_ps(a, b) ((a) / (b))
#define _mm512_fmadd_ps emulated_fma
#define _mm512_fnmadd_ps emulated_fnma
#define _mm512_max_ps emulated_max
#define _mm512_min_ps emulated_min
#define _mm512_abs_ps(x) ((__m512)((Words)(x) & 0x7fffffff))
#define _mm512_roundscale_ps(x, how) ((how) == 8 ? emulated_round(x) : (abort(), (x)))
#define _mm512_permute_ps(x, how) ((how) == 0xb1 ? emulated_swap(x) : (abort(), (x)))
#define _mm512_scalef_ps emulated_scale
#define _mm512_castps512_ps256(x) _mm512_extractf32x8_ps(x, 0)

EMULATED __m256 _mm512_half(__m512 x, int h) { return HALF(x); }
#define _mm512_extractf32x8_ps _mm512_half

/* Whole numbers: sums and products wrap around. */
#define OF_WORDS(a, operator, b) ((__m512i)((Unsigned)(a) operator (Unsigned)(b)))
#define _mm512_setzero_si512() ((__m512i){0})
#define _mm512_set1_epi32(x) ((__m512i)((Words){0} + (int32_t)(x)))
#undef _mm512_setr_epi32
#define _mm512_setr_epi32(...) ((__m512i)(Words){__VA_ARGS__})
#define _mm512_add_epi32(a, b) OF_WORDS(a, +, b)
#define _mm512_sub_epi32(a, b) OF_WORDS(a, -, b)
#define _mm512_mullo_epi32(a, b) OF_WORDS(a, *, b)
#define _mm512_and_si512(a, b) OF_WORDS(a, &, b)
#define _mm512_xor_si512(a, b) OF_WORDS(a, ^, b)
#define _mm512_srli_epi32(x, bits) ((__m512i)((Unsigned)(x) >> (bits)))
#define _mm512_slli_epi32(x, bits) ((__m512i)((Unsigned)(x) << (bits)))
#define _mm512_castsi512_ps(x) ((__m512)(x))
#define _mm512_castps_si512(x) ((__m512i)(x))
#define _mm512_cvtepi32_ps(x) ((__m512) __builtin_convertvector((Words)(x), Floats))
#define _mm512_cvtps_epi32(x) ((__m512i)emulated_whole(x))

/* Masks: a bit for each number. Memory of the others is not touched. */
EMULATED __mmask16 emulated_mask(Words where)
{
    __mmask16 mask = 0;
    FOR_LANES mask |= (where[i] & 1) << i;
    return mask;
}
#define _CMP(a, b, how) \
    ((how) == _CMP_GT_OQ ? (Words)((a) > (b)) : (how) == _CMP_EQ_OQ ? (Words)((a) == (b)) : (abort(), (Words){0}))
#define _mm512_cmp_ps_mask(a, b, how) emulated_mask(_CMP(a, b, how))
#define _mm512_cmpge_epu32_mask(a, b) emulated_mask((Words)((Unsigned)(a) >= (Unsigned)(b)))

EMULATED __m512 emulated_blend(__mmask16 mask, __m512 a, __m512 b)
{
    FOR_LANES a[i] = mask >> i & 1 ? b[i] : a[i];
    return a;
}
#define _mm512_mask_blend_ps emulated_blend
#define _mm512_maskz_mov_ps(mask, x) emulated_blend(mask, (__m512){0}, x)

#define LOAD(name, type, of) \
    EMULATED type name(__mmask16 mask, const void *from) \
    { \
        type y = {0}; \
        FOR_LANES if (mask >> i & 1) memcpy((of *)&y + i, (const of *)from + i, sizeof(of)); \
        return y; \
    }
#define STORE(name, type, of) \
    EMULATED void name(void *to, __mmask16 mask, type x) \
    { \
        FOR_LANES if (mask >> i & 1) memcpy((of *)to + i, (of *)&x + i, sizeof(of)); \
    }
LOAD(emulated_load, __m512, float)
LOAD(emulated_load_halves, __m256i, int16_t)
STORE(emulated_store, __m512, float)
STORE(emulated_store_halves, __m256i, int16_t)
#define _mm512_maskz_loadu_ps emulated_load
#define _mm512_mask_storeu_ps emulated_store
#define _mm256_maskz_loadu_epi16 emulated_load_halves
#define _mm256_mask_storeu_epi16 emulated_store_halves
#define _mm512_loadu_ps(from) emulated_load(0xffff, from)
#define _mm512_loadu_si512(from) ((__m512i)emulated_load(0xffff, from))
#define _mm512_storeu_ps(to, x) emulated_store(to, 0xffff, x)

/* Narrower numbers. */
EMULATED __m512i emulated_widen(__m256i x)
{
    Words y;
    FOR_LANES y[i] = ((uint16_t *)&x)[i];
    return (__m512i)y;
}
EMULATED __m256i emulated_narrow(__m512i x)
{
    __m256i y;
    FOR_LANES ((uint16_t *)&y)[i] = (uint32_t)((Words)x)[i];
    return y;
}
EMULATED __m128i emulated_bytes(__m512i x)
{
    __m128i y;
    FOR_LANES ((uint8_t *)&y)[i] = (uint32_t)((Words)x)[i];
    return y;
}
#define _mm512_cvtepu16_epi32 emulated_widen
#define _mm512_cvtepi32_epi16 emulated_narrow
#define _mm512_cvtepi32_epi8 emulated_bytes

/* bf16: the upper half of a float, and subnormal numbers are 0. */
EMULATED float emulated_normal(float x) { return fabsf(x) < 0x1p-126f ? copysignf(0, x) : x; }
EMULATED float emulated_half(uint16_t bits)
{
    uint32_t all = (uint32_t)bits << 16;
    float x;
    memcpy(&x, &all, sizeof x);
    return emulated_normal(x);
}
EMULATED __m256i emulated_round_to_bf16(__m512 x)
{
    __m256i y;
    FOR_LANES
    {
        float one = emulated_normal(x[i]);
        uint32_t bits;
        memcpy(&bits, &one, sizeof bits);
        ((uint16_t *)&y)[i] = isnan(one) ? bits >> 16 | 0x40 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    }
    return y;
}
#define _mm512_cvtneps_pbh emulated_round_to_bf16

EMULATED float emulated_dot(float sum, const uint16_t *a, const uint16_t *b)
{
    for (int odd = 1; odd >= 0; odd--)
        sum = fmaf(emulated_half(a[odd]), emulated_half(b[odd]), emulated_normal(sum));
    return emulated_normal(sum);
}
EMULATED __m512 emulated_dot_bf16(__m512 sum, __m512bh a, __m512bh b)
{
    FOR_LANES sum[i] = emulated_dot(sum[i], (uint16_t *)&a + 2 * i, (uint16_t *)&b + 2 * i);
    return sum;
}
#define _mm512_dpbf16_ps emulated_dot_bf16

/* Products of bytes: unsigned ones of `a` times signed ones of `b`; nothing saturates. */
EMULATED int32_t emulated_dot_bytes(int32_t sum, const uint8_t *a, const int8_t *b)
{
    uint32_t total = sum;
    for (int byte = 0; byte < 4; byte++)
        total += a[byte] * b[byte];
    return total;
}
EMULATED __m512i emulated_dot_512(__m512i sum, __m512i a, __m512i b)
{
    Words y = (Words)sum;
    FOR_LANES y[i] = emulated_dot_bytes(y[i], (uint8_t *)&a + 4 * i, (int8_t *)&b + 4 * i);
    return (__m512i)y;
}
EMULATED __m256i emulated_dot_256(__m256i sum, __m256i a, __m256i b)
{
    int32_t *y = (int32_t *)&sum;
    for (int i = 0; i < 8; i++)
        y[i] = emulated_dot_bytes(y[i], (uint8_t *)&a + 4 * i, (int8_t *)&b + 4 * i);
    return sum;
}
#define _mm512_dpbusd_epi32 emulated_dot_512
#define _mm256_dpbusd_avx_epi32 emulated_dot_256

/* AMX: eight tiles for each thread, whose rows and columns a configuration says. Shapes that do not
   match, or that exceed a tile, are exceptions of the processor. */
static _Thread_local struct {
    uint8_t palette, rest[15];
    uint16_t bytes[16];
    uint8_t rows[16];
} tiles_shape;
static _Thread_local struct {
    _Alignas(64) uint8_t row[16][64];
} tiles[8];

static void tiles_check(int is_right, const char *what)
{
    if (!is_right) {
        fprintf(stderr, "AMX: %s\n", what);
        abort();
    }
}
__attribute__((unused)) static void tiles_configure(const void *from)
{
    memcpy(&tiles_shape, from, sizeof tiles_shape);
    memset(tiles, 0, sizeof tiles);
    if (tiles_shape.palette == 0)
        memset(&tiles_shape, 0, sizeof tiles_shape);
    tiles_check(tiles_shape.palette <= 1, "palette");
    for (int n = 0; n < 15; n++)
        tiles_check(!tiles_shape.rest[n], "reserved bytes");
    for (int t = 0; t < 16; t++) {
        int rows = tiles_shape.rows[t], bytes = tiles_shape.bytes[t];
        tiles_check(rows <= 16 && bytes <= 64 && !rows == !bytes && (t < 8 || !rows), "a tile's size");
    }
}
__attribute__((unused)) static void tiles_in_use(int tile)
{
    tiles_check(tiles_shape.palette == 1 && tiles_shape.rows[tile], "a tile that is not configured");
}
__attribute__((unused)) static void tiles_zero(int tile)
{
    tiles_in_use(tile);
    memset(tiles + tile, 0, sizeof *tiles);
}
__attribute__((unused)) static void tiles_load(int tile, const void *from, int64_t stride)
{
    tiles_zero(tile);
    for (int r = 0; r < tiles_shape.rows[tile]; r++)
        memcpy(tiles[tile].row[r], (const uint8_t *)from + r * stride, tiles_shape.bytes[tile]);
}
__attribute__((unused)) static void tiles_store(int tile, void *to, int64_t stride)
{
    tiles_in_use(tile);
    for (int r = 0; r < tiles_shape.rows[tile]; r++)
        memcpy((uint8_t *)to + r * stride, tiles[tile].row[r], tiles_shape.bytes[tile]);
}
__attribute__((unused)) static void tiles_multiply(int sum, int a, int b, int is_bytes)
{
    const uint8_t *rows = tiles_shape.rows;
    const uint16_t *bytes = tiles_shape.bytes;
    tiles_in_use(sum), tiles_in_use(a), tiles_in_use(b);
    tiles_check(sum != a && sum != b && a != b, "the same tile twice");
    tiles_check(rows[sum] == rows[a] && bytes[sum] == bytes[b] && bytes[a] == 4 * rows[b], "shapes");
    for (int m = 0; m < rows[sum]; m++)
        for (int k = 0; k < rows[b]; k++) {
            const uint8_t *x = tiles[a].row[m] + 4 * k;
            for (int n = 0; n < bytes[b] / 4; n++) {
                uint8_t *w = tiles[b].row[k] + 4 * n, *y = tiles[sum].row[m] + 4 * n;
                int32_t words;
                float number;
                uint16_t pairs[4];
                memcpy(&words, y, 4), memcpy(&number, y, 4);
                memcpy(pairs, x, 4), memcpy(pairs + 2, w, 4);
                words = emulated_dot_bytes(words, x, (int8_t *)w);
                number = emulated_dot(number, pairs, pairs + 2); /* AMX may add in another order */
                memcpy(y, is_bytes ? (void *)&words : &number, 4);
            }
        }
}
#undef _tile_loadconfig
#undef _tile_storeconfig
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbusd
#undef _tile_dpbf16ps
#define _tile_loadconfig tiles_configure
#define _tile_storeconfig(to) memcpy(to, &tiles_shape, sizeof tiles_shape)
#define _tile_zero tiles_zero
#define _tile_loadd tiles_load
#define _tile_stored tiles_store
#define _tile_dpbusd(sum, a, b) tiles_multiply(sum, a, b, 1)
#define _tile_dpbf16ps(sum, a, b) tiles_multiply(sum, a, b, 0)
