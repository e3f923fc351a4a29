/* Vectors of 16 numbers as arrays, which compilers turn into what instructions there are. */

typedef struct { float r[LANES]; } vec;
typedef struct { int32_t r[LANES]; } ivec;

#define EACH(expression) \
    for (int i = 0; i < LANES; i++) \
        expression
#define DEFINE(name, type, parameters, expression) \
    INLINE type name parameters \
    { \
        type y; \
        EACH(y.r[i] = expression); \
        return y; \
    }

DEFINE(broadcast, vec, (float x), x)
DEFINE(zeros, vec, (void), 0)
DEFINE(load, vec, (const float *x), x[i])
DEFINE(add, vec, (vec a, vec b), a.r[i] + b.r[i])
DEFINE(sub, vec, (vec a, vec b), a.r[i] - b.r[i])
DEFINE(mul, vec, (vec a, vec b), a.r[i] * b.r[i])
DEFINE(divide, vec, (vec a, vec b), a.r[i] / b.r[i])
/* A product of two floats is exact as a double, so that almost all results are those of FMA. */
DEFINE(mul_add, vec, (vec a, vec b, vec c), (float)((double)a.r[i] * b.r[i] + c.r[i]))
DEFINE(sub_mul, vec, (vec a, vec b, vec c), (float)(c.r[i] - (double)a.r[i] * b.r[i]))
DEFINE(max, vec, (vec a, vec b), a.r[i] > b.r[i] ? a.r[i] : b.r[i])
DEFINE(min, vec, (vec a, vec b), a.r[i] < b.r[i] ? a.r[i] : b.r[i])
DEFINE(absolute, vec, (vec x), fabsf(x.r[i]))
DEFINE(round_to_even, vec, (vec x), rintf(x.r[i]))

INLINE vec times_power_of_2(vec x, vec n)
{
    for (int i = 0; i < LANES; i++) {
        uint32_t bits = ((uint32_t)(int32_t)n.r[i] + 127) << 23; /* beyond a row, anything */
        float power;
        memcpy(&power, &bits, sizeof power);
        x.r[i] *= power;
    }
    return x;
}
INLINE void store(float *y, vec x) { memcpy(y, x.r, sizeof x.r); }
INLINE unsigned greater(vec a, vec b)
{
    unsigned mask = 0;
    EACH(mask |= (unsigned)(a.r[i] > b.r[i]) << i);
    return mask;
}
INLINE unsigned equal(vec a, vec b)
{
    unsigned mask = 0;
    EACH(mask |= (unsigned)(a.r[i] == b.r[i]) << i);
    return mask;
}
INLINE float sum_of(vec x)
{
    for (int half = LANES / 2; half; half /= 2)
        for (int i = 0; i < half; i++)
            x.r[i] += x.r[i + half];
    return x.r[0];
}
INLINE float greatest_of(vec x)
{
    for (int half = LANES / 2; half; half /= 2)
        for (int i = 0; i < half; i++)
            x.r[i] = x.r[i] > x.r[i + half] ? x.r[i] : x.r[i + half];
    return x.r[0];
}

DEFINE(izeros, ivec, (void), 0)
DEFINE(iload, ivec, (const int32_t *x), x[i])
DEFINE(isub, ivec, (ivec a, ivec b), a.r[i] - b.r[i])
DEFINE(to_float, vec, (ivec x), (float)x.r[i])
DEFINE(to_whole, ivec, (vec x), (int32_t)rintf(x.r[i]))

INLINE vec as_vec(ivec x)
{
    vec y;
    memcpy(&y, &x, sizeof y);
    return y;
}
INLINE void store_bytes(uint8_t *y, ivec x, int zero) { EACH(y[i] = (uint8_t)(x.r[i] + zero)); }

#include "vectors_tails.h"
