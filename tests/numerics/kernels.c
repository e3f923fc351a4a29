/* Runs the kernels of an instruction set on numbers that are the same everywhere, compares INT8 and
   attention with naive sums, and prints a hash of all results: python -m pytest
   tests/numerics/test_kernels.py compiles it for several machines and compares the hashes. */

#include <stdio.h>
#include <stdlib.h>

#include "kernels.h"

#define kernels chosen_kernels()

static uint32_t seed = 1;
static uint64_t hash;

static uint32_t number(void)
{
    seed = seed * 1664525 + 1013904223;
    return seed >> 8;
}

static float uniform(float least, float most)
{
    return least + (most - least) * (float)(number() % 65536) / 65536;
}

static void add_to_hash(const void *data, size_t size)
{
    for (const uint8_t *byte = data; size; byte++, size--)
        hash = (hash ^ *byte) * 1099511628211u;
}

static void begin(void)
{
    hash = 14695981039346656037u;
}

static void print(const char *what)
{
    printf("%s %016llx\n", what, (unsigned long long)hash);
}

/* Memory whose end is that of the array, so that sanitizers see what is read beyond it. */
static float *floats(long count, float least, float most)
{
    float *x = malloc(count * sizeof *x);
    for (long i = 0; i < count; i++)
        x[i] = uniform(least, most);
    return x;
}

enum { RANDOM, GREATEST, ALTERNATING, CLOSE, SPARSE, SPARSE_SIGNED, KINDS };

/* Whole numbers of -127 to 127, or the extremes alone, or of which four products just fit in 16 bits
   or just do not, or mostly 0. */
static int whole(int kind, long i)
{
    if (kind == RANDOM)
        return (int)(number() % 255) - 127;
    if (kind >= SPARSE)
        return number() % 8 ? 0 : kind == SPARSE ? number() % 128 : (int)(number() % 255) - 127;
    int size = kind == CLOSE ? 88 + number() % 4 : 127;
    return kind == GREATEST || i % 2 ? size : -size;
}

static float half(uint16_t bits)
{
    uint32_t all = (uint32_t)bits << 16;
    float number;
    memcpy(&number, &all, sizeof number);
    return number;
}

/* A linear layer whose inputs and scales are such that outputs are exact: the sums themselves. */
static void check_int8(long rows, long inputs, long outputs, int input_kind, int weight_kind)
{
    long words = (inputs + 63) / 64 * LANES, groups = (outputs + GROUP - 1) / GROUP;
    int8_t *w = calloc(groups * GROUP, 4 * words);
    int32_t *weight = malloc(groups * GROUP * words * 4), *shift = calloc(groups * GROUP, 4);
    float *x = malloc(rows * inputs * sizeof *x), *y = malloc(rows * outputs * sizeof *y);
    float *bias = calloc(groups * GROUP, 4), *scale = malloc(groups * GROUP * 4);
    uint8_t *q = malloc(CHUNK * 4 * words);
    float scales[CHUNK];
    for (long o = 0; o < groups * GROUP; o++) {
        scale[o] = 1;
        for (long i = 0; i < inputs; i++) {
            int value = o < outputs ? whole(weight_kind, i + o) : 0;
            w[o * 4 * words + i] = value;
            shift[o] += 128 * value;
        }
        for (long i = 0; i < words; i++)
            memcpy(weight + (o / GROUP * words + i) * GROUP + o % GROUP, w + (o * words + i) * 4, 4);
    }
    for (long i = 0; i < rows * inputs; i++)
        x[i] = whole(input_kind, i);
    for (long r = 0; r < rows; r++) {
        x[r * inputs] = 127; /* the scale of every row is 1 */
        kernels->quantize(inputs, words, x + r * inputs, q + r * 4 * words, scales + r);
    }
    Inputs in = {rows, words, q, scales};
    for (long n = 0; n < groups; n++) {
        long o = n * GROUP;
        Group g = {&in, weight + o * words, bias + o, scale + o, shift + o, INT8, NONE,
                   outputs - o, outputs, NULL, y + o};
        kernels->multiply(&g, 1);
    }
    for (long r = 0; r < rows; r++)
        for (long o = 0; o < outputs; o++) {
            long sum = 0;
            for (long i = 0; i < inputs; i++)
                sum += (long)x[r * inputs + i] * w[o * 4 * words + i];
            if (y[r * outputs + o] != (float)sum) {
                printf("%ld rows, %ld inputs, %ld outputs: row %ld, output %ld is %f, not %ld\n", rows,
                       inputs, outputs, r, o, y[r * outputs + o], sum);
                exit(1);
            }
        }
    add_to_hash(y, rows * outputs * sizeof *y);
    free(w), free(weight), free(shift), free(x), free(y), free(bias), free(scale), free(q);
}

static void check_fp32(long rows, long inputs, long outputs, int activation, int is_sparse)
{
    long groups = (outputs + GROUP - 1) / GROUP;
    float *weight = floats(groups * GROUP * inputs, -1, 1), *bias = floats(groups * GROUP, -1, 1);
    float *x = floats(rows * inputs, -2, 2), *y = floats(rows * outputs, -1, 1);
    for (long i = 0; is_sparse && i < rows * inputs; i++)
        x[i] = x[i] > 1 ? x[i] : 0;
    Inputs in = {rows, inputs, x, NULL};
    for (long n = 0; n < groups; n++) {
        long o = n * GROUP;
        Group g = {&in, (int32_t *)weight + o * inputs, bias + o, NULL, NULL, FP32, activation,
                   outputs - o, outputs, y + o, y + o};
        kernels->multiply(&g, 1);
    }
    add_to_hash(y, rows * outputs * sizeof *y);
    free(weight), free(bias), free(x), free(y);
}

/* Each product and sum of whichever order and rounding is off by two units of its last place. */
static void check_bf16(long rows, long inputs, long outputs)
{
    long words = (inputs + 31) / 32 * LANES, groups = (outputs + GROUP - 1) / GROUP;
    float *w = floats(groups * GROUP * inputs, -1, 1), *x = floats(rows * inputs, -2, 2);
    float *y = malloc(rows * outputs * sizeof *y), *bias = floats(groups * GROUP, -1, 1);
    uint16_t *q = malloc(rows * 4 * words), *halves = malloc(groups * GROUP * 4 * words);
    int32_t *weight = malloc(groups * GROUP * 4 * words);
    for (long r = 0; r < rows; r++) {
        kernels->round_to_bf16(inputs, words, x + r * inputs, q + r * 2 * words);
        for (long i = 0; i < 2 * words; i++) {
            float from = i < inputs ? x[r * inputs + i] : 0, to = half(q[r * 2 * words + i]);
            if (fabsf(to - from) > fabsf(from) / 256)
                printf("%g is rounded to %g\n", from, to), exit(1);
        }
    }
    for (long o = 0; o < groups * GROUP; o++) {
        kernels->round_to_bf16(inputs, words, w + o * inputs, halves + o * 2 * words);
        for (long i = 0; i < words; i++)
            memcpy(weight + (o / GROUP * words + i) * GROUP + o % GROUP,
                   halves + (o * words + i) * 2, 4);
    }
    Inputs in = {rows, words, q, NULL};
    for (long n = 0; n < groups; n++) {
        long o = n * GROUP;
        Group g = {&in, weight + o * words, bias + o, NULL, NULL, BF16, NONE, outputs - o, outputs,
                   NULL, y + o};
        kernels->multiply(&g, 1);
    }
    for (long r = 0; r < rows; r++)
        for (long o = 0; o < outputs; o++) {
            double sum = bias[o], size = fabs(sum);
            for (long i = 0; i < inputs; i++) {
                double product = (double)half(q[r * 2 * words + i]) * half(halves[o * 2 * words + i]);
                sum += product, size += fabs(product);
            }
            if (!(fabs(y[r * outputs + o] - sum) <= size * (inputs + 1) * 0x1p-22)) {
                printf("%ld rows, %ld inputs, %ld outputs: row %ld, output %ld is %g, not %g\n", rows,
                       inputs, outputs, r, o, y[r * outputs + o], sum);
                exit(1);
            }
        }
    free(w), free(x), free(y), free(bias), free(q), free(halves), free(weight);
}

/* Ties go to even. */
static void check_narrowing(void)
{
    const uint32_t ties[2] = {0x3f808000, 0x3f818000};
    float numbers[2];
    uint16_t narrow[2];
    memcpy(numbers, ties, sizeof ties);
    kernels->narrow(2, numbers, narrow);
    if (narrow[0] != 0x3f80 || narrow[1] != 0x3f82)
        printf("ties are narrowed to %x and %x\n", narrow[0], narrow[1]), exit(1);
}

/* With keys and values in FP32 or BF16, compared with naive sums. */
static void check_attention(int type, long size, long count)
{
    float *numbers = floats(2 * count * size, -2, 2), *q = floats(size, -2, 2);
    uint16_t *narrow = malloc(2 * count * size * sizeof *narrow);
    float *y = malloc(size * sizeof *y), *scores = malloc((count + LANES) * sizeof *scores);
    const void **keys = malloc(count * sizeof *keys);
    kernels->narrow(2 * count * size, numbers, narrow);
    add_to_hash(narrow, 2 * count * size * sizeof *narrow);
    for (long i = 0; i < count; i++)
        keys[i] = type == BF16 ? (void *)(narrow + i * size) : (void *)(numbers + i * size);
    kernels->attend(type, size, count, keys, count * size, q, scores, y);
    add_to_hash(y, size * sizeof *y);
    for (long i = 0; type == BF16 && i < 2 * count * size; i++) {
        if (!(fabsf(half(narrow[i]) - numbers[i]) <= fabsf(numbers[i]) / 256))
            printf("%g is narrowed to %g\n", numbers[i], half(narrow[i])), exit(1);
        numbers[i] = half(narrow[i]);
    }
    double total = 0, *sums = calloc(size, sizeof *sums);
    for (long i = 0; i < count; i++) {
        double score = 0;
        for (long k = 0; k < size; k++)
            score += (double)q[k] * numbers[i * size + k];
        total += exp(score);
        for (long k = 0; k < size; k++)
            sums[k] += exp(score) * numbers[(count + i) * size + k];
    }
    for (long k = 0; k < size; k++)
        if (!(fabs(y[k] - sums[k] / total) <= 2e-4)) {
            printf("attention of %ld keys of %ld numbers: %ld is %g, not %g\n", count, size, k, y[k],
                   sums[k] / total);
            exit(1);
        }
    free(numbers), free(narrow), free(q), free(y), free(scores), free(keys), free(sums);
}

static void check_rows(long size)
{
    float *x = floats(size, -9, 9), *y = malloc(size * sizeof *y);
    float *weight = floats(size, -1, 1), *bias = floats(size, -1, 1);
    Norm norm = {weight, bias, 1e-5f};
    kernels->normalize(&norm, size, x, y);
    add_to_hash(y, size * sizeof *y);
    float sums[6];
    int64_t origins[6], tokens[6];
    Candidates best = {6, sums, origins, tokens};
    for (int n = 0; n < 6; n++)
        sums[n] = -INFINITY, origins[n] = tokens[n] = 0;
    kernels->add_candidates(&best, 0, size, x, -1.5f);
    kernels->add_candidates(&best, 1, size, y, 2.5f);
    add_to_hash(sums, sizeof sums);
    add_to_hash(origins, sizeof origins);
    add_to_hash(tokens, sizeof tokens);
    long greatest = kernels->find_greatest(size, x), expected = 0;
    for (long i = 0; i < size; i++)
        expected = x[i] > x[expected] ? i : expected;
    double total = 0;
    for (long i = 0; i < size; i++)
        total += exp(x[i]);
    if (greatest != expected || fabs(kernels->log_sum_exp(size, x) - log(total)) > 1e-5) {
        printf("%ld numbers: the greatest is %ld, not %ld\n", size, greatest, expected);
        exit(1);
    }
    float *sum = floats(size, -9, 9);
    sum[0] = -INFINITY;
    for (long i = 0; i < size; i++)
        bias[i] = log(exp(sum[i]) + exp(x[i] - 1.5));
    kernels->add_in_log_space(size, x, -1.5f, sum);
    add_to_hash(sum, size * sizeof *sum);
    for (long i = 0; i < size; i++)
        if (fabs(sum[i] - bias[i]) > 2e-6) {
            printf("%ld numbers: the sum of %ld is %g, not %g\n", size, i, sum[i], bias[i]);
            exit(1);
        }
    free(sum);
    for (long i = 0; i < size; i++) /* the first of several is found */
        x[i] = i < size / 3 ? -INFINITY : (float)(number() % 6) - 3;
    greatest = kernels->find_greatest(size, x);
    for (long i = 0; i < size; i++)
        if (x[i] > x[greatest] || (x[i] == x[greatest] && i < greatest))
            exit(1);
    for (long i = 0; i < size; i++)
        x[i] = i % 2 ? NAN : -INFINITY;
    if (kernels->find_greatest(size, x) != -1)
        exit(1);
    free(x), free(y), free(weight), free(bias);
}

static void *rounded(int type, long count, float *x)
{
    uint16_t *halves = malloc(count * sizeof *halves);
    for (long i = 0; i < count; i++)
        memcpy(halves + i, (char *)(x + i) + 2, sizeof *halves);
    if (type == FP32)
        return free(halves), x;
    return free(x), halves;
}

/* Forward and backward, with dropout, in fp32 and bf16. */
static void check_training(int type, long rows, long heads, long size)
{
    long d = heads * size, bytes = rows * d * (type == BF16 ? 2 : 4);
    int64_t *places = malloc(rows * sizeof *places);
    for (long r = 0; r < rows; r++)
        places[r] = (int64_t)number() << 32 | r;
    RowDropout dropout = {number(), rows % 3 ? places : NULL, 1u << 30, 4.f / 3};
#define ROWS_OF(name, width) void *name = rounded(type, rows * (width), floats(rows * (width), -3, 3))
    ROWS_OF(x, d);
    ROWS_OF(y, d);
    ROWS_OF(z, d);
    ROWS_OF(gradient, d);
    ROWS_OF(joined, 3 * d);
    ROWS_OF(of_joined, 3 * d);
    float *weight = floats(d, -1, 1), *bias = floats(d, -1, 1), *moments = floats(2 * rows, 0, 0);
    long blocks = (rows + ROWS_OF_A_SUM - 1) / ROWS_OF_A_SUM;
    float *dweight = floats(blocks * d, 0, 0), *dbias = floats(blocks * d, 0, 0);
    Residual r = {type, rows, d, x, y, dropout, {weight, bias, 1e-5f}, y, z, moments,
                  NULL, gradient, x, y, dweight, dbias};
    add_and_normalize(&r, 0, 1);
    add_to_hash(z, bytes);
    for (int from_sum = 0; from_sum < 2; from_sum++) { /* z: any numbers */
        r.sum = from_sum ? z : NULL;
        r.normed = from_sum ? NULL : z;
        add_and_normalize(&r, 1, 1);
        add_to_hash(x, bytes);
        add_to_hash(y, bytes);
        add_to_hash(dweight, blocks * d * sizeof *dweight);
        add_to_hash(dbias, blocks * d * sizeof *dbias);
    }
    for (int activation = RELU; activation <= SILU; activation++) {
        Activation a = {type, rows, d, activation, x, z, dropout, gradient, y};
        activate(&a, 0, 1);
        add_to_hash(z, bytes);
        a.y = z;
        activate(&a, 1, 1);
        add_to_hash(y, bytes);
    }
    int32_t starts[] = {0, (int32_t)rows / 3}, lengths[] = {(int32_t)rows / 3, (int32_t)(rows - rows / 3)};
    float *cosines = floats(rows * size, -1, 1), *sines = floats(rows * size, -1, 1);
    const char *q = joined;
    char *dq = of_joined;
    long part = bytes / rows;
    RowAttention a = {type, 2, heads, size, rows % 2, starts, lengths, starts, lengths,
                      q, q + part, q + 2 * part, 3 * d, 3 * d, cosines, sines, .3f, dropout,
                      y, gradient, dq, dq + part, dq + 2 * part};
    attend_to_rows(&a, 0, 1);
    add_to_hash(y, bytes);
    attend_to_rows(&a, 1, 1);
    add_to_hash(of_joined, 3 * bytes);
    int64_t *labels = malloc(rows * sizeof *labels);
    for (long i = 0; i < rows; i++)
        labels[i] = number() % d;
    Softmax s = {type, rows, d, x, labels, dweight, dbias};
    float *log_probs = floats(rows, 0, 0), *logits = floats(rows, 0, 0);
    s.label_logits = logits, s.label_log_probs = log_probs;
    to_probabilities(&s, 1);
    add_to_hash(x, bytes);
    add_to_hash(logits, rows * sizeof *logits);
    free(x), free(y), free(z), free(gradient), free(joined), free(of_joined), free(weight);
    free(bias), free(moments), free(dweight), free(dbias), free(cosines), free(sines);
    free(labels), free(log_probs), free(logits), free(places);
}

int main(int count, char **names)
{
    static const long sizes[] = {1, 3, 4, 5, 15, 16, 17, 30, 63, 64, 65, 130, 260};
    enum { SIZES = sizeof sizes / sizeof *sizes };
    int precisions = choose_kernels(count > 1 ? names[1] : NULL);
    if (!precisions)
        return 77; /* this machine cannot run them */
    printf("kernels %s\nprecisions %d\n", kernels->name, precisions);
    for (long rows = 1; rows <= 44 && precisions & 1 << BF16; rows += rows < 14 ? 1 : 6)
        for (int i = 0; i < SIZES; i++)
            check_bf16(rows, sizes[i], sizes[(i + rows) % SIZES]);
    seed = 1; /* the same numbers follow without bf16 */
    begin();
    for (long rows = 1; rows <= 44; rows += rows < 14 ? 1 : 6)
        for (int i = 0; i < SIZES; i++)
            for (int kind = 0; kind < KINDS; kind++)
                check_int8(rows, sizes[i], sizes[(i + rows) % SIZES], kind,
                           (kind + rows + i) % KINDS);
    for (int kind = 0; kind < KINDS * KINDS; kind++) /* several blocks of words */
        check_int8(27, 1030, 17, kind % KINDS, kind / KINDS);
    check_int8(27, 16500, 17, RANDOM, RANDOM);
    print("int8");
    begin();
    for (long rows = 1; rows <= 44; rows += rows < 14 ? 1 : 6)
        for (int i = 0; i < 2 * SIZES; i++)
            check_fp32(rows, sizes[i % SIZES], sizes[(i + rows) % SIZES], (i + rows) % 3, i % 2);
    check_fp32(7, 4100, 17, NONE, 1);
    print("fp32");
    begin();
    check_narrowing();
    for (int i = 0; i < SIZES; i++)
        for (int n = 0; n < SIZES; n++)
            for (int type = FP32; type <= BF16; type++)
                check_attention(type, sizes[i], sizes[n]);
    print("attention");
    begin();
    for (int i = 0; i < SIZES; i++)
        check_rows(sizes[i]);
    print("rows");
    if (kernels->probabilities == NULL)
        return 0;
    begin();
    for (long rows = 6; rows < 150; rows += 31)
        for (int i = 0; i < SIZES; i++)
            for (int type = FP32; type <= BF16; type++)
                check_training(type, rows, 1 + i % 3, 2 * sizes[i]);
    print("training");
    return 0;
}
