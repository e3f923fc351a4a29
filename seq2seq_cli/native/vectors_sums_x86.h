/* Sums of the numbers of a vector, once vectors_*.h has added its quarters. */

INLINE float sum_of(vec x)
{
    __m128 quarter = sum_of_quarters(x);
    quarter = _mm_add_ps(quarter, _mm_movehl_ps(quarter, quarter));
    return _mm_cvtss_f32(_mm_add_ss(quarter, _mm_movehdup_ps(quarter)));
}
/* Of four vectors. */
INLINE void store_sums(float *y, const vec *x)
{
    __m128 a = sum_of_quarters(x[0]), b = sum_of_quarters(x[1]);
    __m128 c = sum_of_quarters(x[2]), d = sum_of_quarters(x[3]);
    a = _mm_add_ps(_mm_movelh_ps(a, b), _mm_movehl_ps(b, a));
    c = _mm_add_ps(_mm_movelh_ps(c, d), _mm_movehl_ps(d, c));
    _mm_storeu_ps(y, _mm_add_ps(_mm_shuffle_ps(a, c, 0x88), _mm_shuffle_ps(a, c, 0xdd)));
}
