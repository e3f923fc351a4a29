/* The table of kernels, which every instruction set has one of. */

#ifndef KERNELS_H
#define KERNELS_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "native.h"
#include "training.h"

#if (__GNUC__ >= 11 || defined(__clang__)) && defined(__x86_64__) && defined(__linux__)
#define HAS_AMX
#endif
#if (__GNUC__ >= 11 || __clang_major__ >= 12) && defined(__x86_64__)
#define HAS_AVXVNNI
#endif
#define INLINE static inline __attribute__((always_inline))
#define NOINLINE __attribute__((noinline))

enum { CHUNK = 96 }; /* rows that are converted at once: a multiple of the rows of all tiles */

/* Rows of inputs as words of 32 bits: one fp32 number, two of bf16 or four of int8. */
typedef struct {
    int64_t count, words;
    const void *numbers;
    const float *scale; /* of every row, in INT8 */
} Inputs;

/* One group of outputs of a linear layer. */
typedef struct {
    const Inputs *x;
    const int32_t *weight;
    const float *bias, *scale; /* scale and shift: INT8 only */
    const int32_t *shift;
    int precision, activation;
    int64_t outputs, stride; /* outputs from this group on; distance between rows */
    const float *residual;
    float *y;
} Group;

/* Continuations of the hypotheses of a sentence, `count` of them, the greatest sum first. */
typedef struct {
    int64_t count;
    float *sums;
    int64_t *origins, *tokens;
} Candidates;

typedef struct {
    const char *name;
    int precisions; /* a bit for each */
    /* Quantize a row of inputs x to round(127 x / max|x|), filled up to whole words. */
    void (*quantize)(int64_t size, int64_t words, const float *x, uint8_t *q, float *scale);
    void (*round_to_bf16)(int64_t size, int64_t words, const float *x, uint16_t *q);
    /* Multiply some groups, one after the other in memory; their inputs are the same. */
    void (*multiply)(const Group *groups, int64_t count);
    void (*narrow)(int64_t size, const float *x, uint16_t *y); /* to bf16 */
    /* softmax(q K) V: keys[i] points to a key, in FP32 or BF16; its value is `to_values` numbers
       further. */
    void (*attend)(int type, int64_t size, int64_t count, const void *const *keys,
                   int64_t to_values, const float *q, float *scores, float *y);
    void (*normalize)(const Norm *norm, int64_t size, const float *x, float *y);
    float (*log_sum_exp)(int64_t size, const float *x);
    /* y = log(e^y + e^(x + offset)) */
    void (*add_in_log_space)(int64_t size, const float *x, float offset, float *y);
    /* The first index of the greatest number; -1 if all are -inf or NaN. */
    int64_t (*find_greatest)(int64_t size, const float *x);
    /* Let the numbers of a row, plus `offset`, take their places among the candidates. */
    void (*add_candidates)(const Candidates *c, int64_t origin, int64_t size, const float *x,
                           float offset);
    /* Training: heads of sentences, blocks of ROWS_OF_A_SUM rows, rows; from first to last - 1. */
    void (*attend_forward)(const RowAttention *a, int64_t first, int64_t last);
    void (*attend_backward)(const RowAttention *a, int64_t first, int64_t last);
    void (*residual_forward)(const Residual *r, int64_t first, int64_t last);
    void (*residual_backward)(const Residual *r, int64_t first, int64_t last);
    void (*activation_forward)(const Activation *a, int64_t first, int64_t last);
    void (*activation_backward)(const Activation *a, int64_t first, int64_t last);
    void (*probabilities)(const Softmax *s, int64_t first, int64_t last);
} Kernels;

/* Of this machine. Hidden, as a program that is linked to the library would have its own copy. */
extern const Kernels *kernels __attribute__((visibility("hidden")));

/* Choose kernels by name, or the fastest if it is NULL. Return the precisions, a bit for each, that
   this machine supports with them; 0 if it cannot run them. */
int choose_kernels(const char *name);
const Kernels *chosen_kernels(void);

/* Let a continuation take its place among the candidates, behind those with the same sum. */
static inline void offer(const Candidates *c, float sum, int64_t origin, int64_t token)
{
    int64_t place = c->count - 1;
    for (; place > 0 && sum > c->sums[place - 1]; place--) {
        c->sums[place] = c->sums[place - 1];
        c->origins[place] = c->origins[place - 1];
        c->tokens[place] = c->tokens[place - 1];
    }
    c->sums[place] = sum;
    c->origins[place] = origin;
    c->tokens[place] = token;
}

#endif
