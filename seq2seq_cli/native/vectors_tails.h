/* Vectors of which only the first `count` numbers are there, for sets without masks. */

INLINE unsigned first(int64_t count)
{
    return count >= LANES ? 0xffff : (1u << count) - 1;
}

INLINE vec load_first(const float *x, int64_t count)
{
    if (count >= LANES)
        return load(x);
    float some[LANES] = {0};
    memcpy(some, x, count * sizeof *x);
    return load(some);
}
INLINE void store_first(float *y, int64_t count, vec x)
{
    if (count >= LANES) {
        store(y, x);
        return;
    }
    float all[LANES];
    store(all, x);
    memcpy(y, all, count * sizeof *y);
}
#ifndef HAS_FILL_AND_SUMS
INLINE vec fill(vec x, int64_t count, float rest)
{
    if (count >= LANES)
        return x;
    float all[LANES];
    store(all, x);
    for (int64_t i = count; i < LANES; i++)
        all[i] = rest;
    return load(all);
}
INLINE void store_sums(float *y, const vec *x)
{
    for (int i = 0; i < 4; i++)
        y[i] = sum_of(x[i]);
}
#endif

INLINE vec load_bf16(const uint16_t *x, int64_t count)
{
    if (count >= LANES)
        return widen(x);
    uint16_t some[LANES] = {0};
    memcpy(some, x, count * sizeof *x);
    return widen(some);
}
INLINE void store_bf16(uint16_t *y, int64_t count, vec x)
{
    if (count >= LANES) {
        narrow(y, x);
        return;
    }
    uint16_t all[LANES];
    narrow(all, x);
    memcpy(y, all, count * sizeof *y);
}
