/* Vectors of which only the first `count` numbers are there, for sets without masks. */

INLINE unsigned first(long count)
{
    return count >= LANES ? 0xffff : (1u << count) - 1;
}

INLINE vec load_first(const float *x, long count)
{
    if (count >= LANES)
        return load(x);
    float some[LANES] = {0};
    memcpy(some, x, count * sizeof *x);
    return load(some);
}
INLINE void store_first(float *y, long count, vec x)
{
    if (count >= LANES) {
        store(y, x);
        return;
    }
    float all[LANES];
    store(all, x);
    memcpy(y, all, count * sizeof *y);
}
INLINE vec fill(vec x, long count, float rest)
{
    if (count >= LANES)
        return x;
    float all[LANES];
    store(all, x);
    for (long i = count; i < LANES; i++)
        all[i] = rest;
    return load(all);
}

#ifdef TILE_ROWS
INLINE vec load_bf16(const uint16_t *x, long count)
{
    if (count >= LANES)
        return widen(x);
    uint16_t some[LANES] = {0};
    memcpy(some, x, count * sizeof *x);
    return widen(some);
}
INLINE void store_bf16(uint16_t *y, long count, vec x)
{
    if (count >= LANES) {
        narrow(y, x);
        return;
    }
    uint16_t all[LANES];
    narrow(all, x);
    memcpy(y, all, count * sizeof *y);
}
#endif
