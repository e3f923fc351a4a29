/* A word of inputs times 16 words of weights, by add_bytes in INT8, and what is prefetched. */

INLINE __m256i add_numbers(__m256i sum, __m256i x, __m256i weight)
{
    return _mm256_castps_si256(_mm256_fmadd_ps(_mm256_castsi256_ps(x), _mm256_castsi256_ps(weight),
                                               _mm256_castsi256_ps(sum)));
}

INLINE ivec add_products(const int precision, ivec sum, int32_t word, ivec weight)
{
    __m256i x = _mm256_set1_epi32(word);
    if (precision == INT8)
        return (ivec){add_bytes(sum.a, x, weight.a), add_bytes(sum.b, x, weight.b)};
    return (ivec){add_numbers(sum.a, x, weight.a), add_numbers(sum.b, x, weight.b)};
}

/* Of the next group, which is read from memory all the while that this one is multiplied. */
#define PREFETCHED(g, i, panel) \
    ((g)->weight + (g)->x->words * (GROUP + (panel) * LANES) + (i) * LANES)
