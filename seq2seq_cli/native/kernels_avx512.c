/* Kernels for processors with AVX-512: FMA, VNNI, AVX512_BF16 and AMX. */

#ifdef __x86_64__
#include <immintrin.h>

#include "kernels.h"
#include "target.h"

#define FEATURES "avx512f,avx512bw,avx512dq,avx512vl,fma"
#if __GNUC__ >= 10 || defined(__clang__)
#define HAS_BF16
#define FEATURES_BF16 ",avx512bf16"
#else
#define FEATURES_BF16
#endif

USE_TARGET(FEATURES ",avx512vnni" FEATURES_BF16)
#include "vectors_avx512.h"

#ifdef HAS_BF16
#define PRECISIONS (1 << FP32 | 1 << BF16 | 1 << INT8)
#else
#define PRECISIONS (1 << FP32 | 1 << INT8)
#endif
#define ROWS 6
#define PANELS_WITH(rows) PANELS
#define UNSIGNED_INPUTS 1

INLINE ivec add_products(const int precision, ivec sum, int32_t word, ivec weight)
{
    __m512i x = _mm512_set1_epi32(word);
    if (precision == INT8)
        return _mm512_dpbusd_epi32(sum, x, weight);
#ifdef HAS_BF16
    if (precision == BF16)
        return (__m512i)_mm512_dpbf16_ps((__m512)sum, (__m512bh)x, (__m512bh)weight);
#endif
    return (__m512i)_mm512_fmadd_ps((__m512)x, (__m512)weight, (__m512)sum);
}

#ifdef HAS_BF16
static void round_to_bf16(int64_t size, int64_t words, const float *x, uint16_t *q)
{
    for (int64_t i = 0; i < size; i += LANES)
        _mm256_storeu_si256((__m256i *)(q + i),
                            (__m256i)_mm512_cvtneps_pbh(load_first(x + i, size - i)));
    int64_t end = (size + LANES - 1) / LANES * LANES;
    memset(q + end, 0, 2 * (2 * words - end));
}
#endif

#define MAX_NONZERO_WORDS(precision, rows) ((rows) > ROWS ? 6 : (precision) == FP32 ? 5 : 0)
#define add_unsigned add_products
#define NAME avx512
#include "kernels_template.h"

#ifdef HAS_AMX
enum { MANY = 12 }; /* with at least so many rows AMX is faster in int8 */

typedef struct {
    uint8_t palette, start_row, none[14];
    uint16_t bytes[16];
    uint8_t rows[16];
} Tiles;

#define TILES __attribute__((target("amx-int8,amx-bf16,amx-tile")))

/* Tiles 0 to 3 are sums, 4 and 5 inputs, 6 and 7 weights. */
TILES static void take_tiles(Tiles *former, int64_t rows)
{
    Tiles own = {.palette = 1};
    for (int tile = 0; tile < 8; tile++) {
        own.bytes[tile] = 4 * LANES;
        own.rows[tile] = tile < 6 && rows < LANES ? rows : LANES;
    }
    _tile_storeconfig(former); /* oneDNN relies on its own configuration */
    __asm__ volatile("" : "+m"(*former), "+m"(own)); /* some compilers assume 8 bytes */
    _tile_loadconfig(&own);
}

TILES static void give_back_tiles(const Tiles *former)
{
    _tile_loadconfig(former);
}

#define ADD_PRODUCTS_OF_TILES(sums, x, weights) \
    do { \
        if (g->precision == INT8) \
            _tile_dpbusd(sums, x, weights); \
        else \
            _tile_dpbf16ps(sums, x, weights); \
    } while (0)

/* Turn sums of some panels, [rows][panels][LANES], into outputs. */
static void finish_tiles(const Group *g, int panel, int panels, int64_t row, const int32_t *sums)
{
    int64_t rows = g->x->count - row < 2 * LANES ? g->x->count - row : 2 * LANES;
    const Group own = *g; /* which stores to y cannot change */
    for (int p = 0; p < panels && (panel + p) * LANES < own.outputs; p++)
        for (int64_t r = 0; r < rows; r++)
            finish(&own, own.precision, panel + p, row + r,
                   iload(sums + (r * panels + p) * LANES));
}

/* Up to 16 rows times four panels: each weight is read once, in the order of memory. */
TILES static void multiply_few_tiles(const Group *g)
{
    int32_t sums[LANES][GROUP];
    int64_t words = g->x->words;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t i = 0; i < words; i += LANES) {
        const int32_t *weight = g->weight + i * GROUP;
        for (int64_t n = 0; n < LANES * GROUP; n += LANES)
            _mm_prefetch((const char *)(weight + n) + 2 * AHEAD, _MM_HINT_T0);
        _tile_loadd(4, (const int32_t *)g->x->numbers + i, 4 * words);
        _tile_loadd(6, weight, 4 * GROUP);
        _tile_loadd(7, weight + LANES, 4 * GROUP);
        ADD_PRODUCTS_OF_TILES(0, 4, 6);
        ADD_PRODUCTS_OF_TILES(1, 4, 7);
        _tile_loadd(6, weight + 2 * LANES, 4 * GROUP);
        _tile_loadd(7, weight + 3 * LANES, 4 * GROUP);
        ADD_PRODUCTS_OF_TILES(2, 4, 6);
        ADD_PRODUCTS_OF_TILES(3, 4, 7);
    }
    _tile_stored(0, sums[0], sizeof sums[0]);
    _tile_stored(1, sums[0] + LANES, sizeof sums[0]);
    _tile_stored(2, sums[0] + 2 * LANES, sizeof sums[0]);
    _tile_stored(3, sums[0] + 3 * LANES, sizeof sums[0]);
    finish_tiles(g, 0, PANELS, 0, sums[0]);
}

/* 32 rows times two panels at once. Rows beyond the last are multiplied too, whatever `x` holds
   there, and their results are dropped. */
TILES static void multiply_many_tiles(const Group *g)
{
    int32_t sums[2 * LANES][2 * LANES];
    int64_t rows = g->x->count, words = g->x->words;
    for (int panel = 0; panel < PANELS && panel * LANES < g->outputs; panel += 2)
        for (int64_t row = 0; row < rows; row += 2 * LANES) {
            const int32_t *upper = (const int32_t *)g->x->numbers + row * words;
            const int32_t *lower = upper + LANES * words;
            int has_lower = rows - row > LANES;
            _tile_zero(0);
            _tile_zero(1);
            _tile_zero(2);
            _tile_zero(3);
            for (int64_t i = 0; i < words; i += LANES) {
                const int32_t *weight = g->weight + i * GROUP + panel * LANES;
                _tile_loadd(4, upper + i, 4 * words);
                _tile_loadd(6, weight, 4 * GROUP);
                _tile_loadd(7, weight + LANES, 4 * GROUP);
                ADD_PRODUCTS_OF_TILES(0, 4, 6);
                ADD_PRODUCTS_OF_TILES(1, 4, 7);
                if (has_lower) {
                    _tile_loadd(5, lower + i, 4 * words);
                    ADD_PRODUCTS_OF_TILES(2, 5, 6);
                    ADD_PRODUCTS_OF_TILES(3, 5, 7);
                }
            }
            _tile_stored(0, sums[0], sizeof sums[0]);
            _tile_stored(1, sums[0] + LANES, sizeof sums[0]);
            _tile_stored(2, sums[LANES], sizeof sums[0]);
            _tile_stored(3, sums[LANES] + LANES, sizeof sums[0]);
            finish_tiles(g, panel, 2, row, sums[0]);
        }
}

/* In bf16 for any number of rows or for none: AMX adds in another order. */
static void multiply_amx(const Group *groups, int64_t count)
{
    int64_t rows = groups->x->count;
    if (groups->precision == FP32 || (groups->precision == INT8 && rows < MANY)) {
        multiply(groups, count);
        return;
    }
    Tiles former;
    take_tiles(&former, rows);
    for (const Group *g = groups; g < groups + count; g++)
        (rows <= LANES ? multiply_few_tiles : multiply_many_tiles)(g);
    give_back_tiles(&former);
}

const Kernels kernels_amx = {"amx", KERNELS_WITH(multiply_amx)};
#endif
END_TARGET
#endif
