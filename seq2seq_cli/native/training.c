/* The loops of the fused operations of training. */

#include <math.h>

#include "training.h"

#include "kernels.h"
#include "threads.h"

enum { ROWS_AT_ONCE = 16 }; /* of an element-wise operation */

typedef struct {
    const void *what;
    int is_backward;
} Call;

static void attend_some(void *context, int64_t first, int64_t last, int thread)
{
    const Call *call = context;
    (call->is_backward ? kernels->attend_backward : kernels->attend_forward)(call->what, first, last);
}

int attend_to_rows(const RowAttention *a, int is_backward, int threads)
{
    int lacks_memory = 0;
    RowAttention attention = *a;
    attention.lacks_memory = &lacks_memory;
    Call call = {&attention, is_backward};
    parallel(threads, a->sentences * a->heads, attend_some, &call);
    return lacks_memory;
}

static void normalize_some(void *context, int64_t first, int64_t last, int thread)
{
    const Call *call = context;
    (call->is_backward ? kernels->residual_backward : kernels->residual_forward)(call->what, first,
                                                                                last);
}

void add_and_normalize(const Residual *r, int is_backward, int threads)
{
    Call call = {r, is_backward};
    parallel(threads, (r->rows + ROWS_OF_A_SUM - 1) / ROWS_OF_A_SUM, normalize_some, &call);
}

/* Whether normed numbers tell what weight and bias were applied to, within a few roundings. */
int is_invertible(const Norm *norm, int64_t size)
{
    for (int64_t i = 0; i < size; i++)
        if (!(64 * fabsf(norm->weight[i]) > fmaxf(fabsf(norm->bias[i]), 1e-6f)))
            return 0;
    return 1;
}

static void activate_some(void *context, int64_t first, int64_t last, int thread)
{
    const Call *call = context;
    const Activation *a = call->what;
    int64_t end = last * ROWS_AT_ONCE < a->rows ? last * ROWS_AT_ONCE : a->rows;
    (call->is_backward ? kernels->activation_backward
                       : kernels->activation_forward)(a, first * ROWS_AT_ONCE, end);
}

void activate(const Activation *a, int is_backward, int threads)
{
    Call call = {a, is_backward};
    parallel(threads, (a->rows + ROWS_AT_ONCE - 1) / ROWS_AT_ONCE, activate_some, &call);
}

static void normalize_logits(void *context, int64_t first, int64_t last, int thread)
{
    kernels->probabilities(context, first, last);
}

void to_probabilities(const Softmax *s, int threads)
{
    parallel(threads, s->rows, normalize_logits, (void *)s);
}
