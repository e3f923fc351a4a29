/* Vectors of 16 numbers of GCC's and Clang's own kind, which become what instructions there are. */

typedef float vec __attribute__((vector_size(4 * LANES)));
typedef int32_t ivec __attribute__((vector_size(4 * LANES)));
typedef uint32_t uvec __attribute__((vector_size(4 * LANES)));
typedef uint16_t uhalves __attribute__((vector_size(2 * LANES)));
typedef double Doubles __attribute__((vector_size(8 * LANES)));

INLINE vec broadcast(float x) { return x - (vec){0}; }
INLINE vec zeros(void) { return (vec){0}; }
INLINE vec load(const float *x)
{
    vec y;
    memcpy(&y, x, sizeof y);
    return y;
}
INLINE vec add(vec x, vec y) { return x + y; }
INLINE vec sub(vec x, vec y) { return x - y; }
INLINE vec mul(vec x, vec y) { return x * y; }
INLINE vec divide(vec x, vec y) { return x / y; }
INLINE Doubles as_doubles(vec x) { return __builtin_convertvector(x, Doubles); }
/* A product of two floats is exact as a double, so that almost all results are those of FMA. */
INLINE vec mul_add(vec x, vec y, vec z)
{
    return __builtin_convertvector(as_doubles(x) * as_doubles(y) + as_doubles(z), vec);
}
INLINE vec sub_mul(vec x, vec y, vec z)
{
    return __builtin_convertvector(as_doubles(z) - as_doubles(x) * as_doubles(y), vec);
}
INLINE vec where(ivec condition, vec x, vec y)
{
    return (vec)(((ivec)x & condition) | ((ivec)y & ~condition));
}
INLINE vec max(vec x, vec y) { return where(x > y, x, y); }
INLINE vec min(vec x, vec y) { return where(x < y, x, y); }
INLINE vec absolute(vec x) { return (vec)((ivec)x & 0x7fffffff); }
/* Beyond 2^22 a float has no bits after the point. */
INLINE vec round_to_even(vec x) { return (x + 0x1.8p23f) - 0x1.8p23f; }
INLINE ivec to_whole(vec x)
{
    return (ivec)((uvec)(x + 0x1.8p23f) - (uvec)broadcast(0x1.8p23f));
}
/* Unsigned, as `n` may be anything after the end of a row. */
INLINE vec times_power_of_2(vec x, vec n)
{
    return x * (vec)(((uvec)to_whole(n) + 127) << 23);
}
INLINE void store(float *y, vec x) { memcpy(y, &x, sizeof x); }
INLINE unsigned bits_of(ivec mask)
{
    unsigned bits = 0;
    for (int i = 0; i < LANES; i++)
        bits |= (mask[i] & 1u) << i;
    return bits;
}
INLINE unsigned greater(vec x, vec y) { return bits_of(x > y); }
INLINE unsigned equal(vec x, vec y) { return bits_of(x == y); }
INLINE float sum_of(vec x)
{
    float some[LANES];
    store(some, x);
    for (int half = LANES / 2; half; half /= 2)
        for (int i = 0; i < half; i++)
            some[i] += some[i + half];
    return some[0];
}
INLINE float greatest_of(vec x)
{
    float some[LANES];
    store(some, x);
    for (int half = LANES / 2; half; half /= 2)
        for (int i = 0; i < half; i++)
            some[i] = some[i] > some[i + half] ? some[i] : some[i + half];
    return some[0];
}

INLINE ivec izeros(void) { return (ivec){0}; }
INLINE ivec iload(const int32_t *x)
{
    ivec y;
    memcpy(&y, x, sizeof y);
    return y;
}
INLINE ivec isub(ivec x, ivec y) { return x - y; }
INLINE vec to_float(ivec x) { return __builtin_convertvector(x, vec); }
INLINE vec as_vec(ivec x) { return (vec)x; }
INLINE void store_bytes(uint8_t *y, ivec x, int zero)
{
    for (int i = 0; i < LANES; i++)
        y[i] = (uint8_t)(x[i] + zero);
}

INLINE vec widen(const uint16_t *x) /* bf16 */
{
    uhalves some;
    memcpy(&some, x, sizeof some);
    return (vec)(__builtin_convertvector(some, uvec) << 16);
}
/* To the nearest, ties to even. */
INLINE void narrow(uint16_t *y, vec x)
{
    uvec bits = (uvec)x;
    uhalves some = __builtin_convertvector((bits + 0x7fff + (bits >> 16 & 1)) >> 16, uhalves);
    memcpy(y, &some, sizeof some);
}

#include "vectors_tails.h"
