/* Fused operations of training, forward and backward. Python fills the structures.

   Rows of activations are in fp32 or bf16 (`type`); sums are in fp32, in an order that does not
   depend on the number of threads. */

#ifndef TRAINING_H
#define TRAINING_H

#include "native.h"

enum { ROWS_OF_A_SUM = 64 }; /* rows whose gradients of a weight are added up by one thread */

/* A number is dropped if its 32 random bits, a hash of `key`, of the place of its row and of its own
   place in the row, are below `least`; the others are multiplied by `scale`. */
typedef struct {
    uint64_t key;
    const int64_t *places; /* of every row; NULL: its number */
    uint32_t least; /* 0: nothing is dropped */
    float scale;
} RowDropout;

/* Attention of packed sentences: softmax(scale · q Kᵀ) V with dropout of the weights. */
typedef struct {
    int64_t type, sentences, heads, size; /* numbers of a head */
    int64_t is_causal;                    /* row i attends to rows 0 to i */
    const int32_t *starts, *lengths;      /* rows of queries of every sentence */
    const int32_t *memory_starts, *memory_lengths;
    const void *q, *k, *v;
    int64_t q_stride, k_stride;     /* numbers from one row to the next; the same for v as for k */
    const float *cosines, *sines;   /* [positions][size], sines of even places negated; or NULL */
    float scale;
    RowDropout dropout;
    void *y;                        /* [rows][heads][size] */
    const void *dy;                 /* the gradient of y */
    void *dq, *dk, *dv;             /* gradients, with the strides of q, k and v */
    int *lacks_memory;              /* set by attend_to_rows */
} RowAttention;

/* sum = x + dropout(y), normed = norm(sum). */
typedef struct {
    int64_t type, rows, size;
    const void *x, *y; /* x may be NULL; y may be NULL: sum is x, which must be given as `sum` */
    RowDropout dropout;   /* of y */
    Norm norm;         /* weight NULL: no norm */
    void *sum, *normed; /* may be the same; the backward pass needs one of them, the other is NULL */
    float *moments; /* [rows][2]: mean and inverse standard deviation of every sum */
    const void *dsum, *dnormed; /* gradients; dsum may be NULL */
    void *dx, *dy;              /* dy may be NULL */
    float *dweight, *dbias;     /* [rows / ROWS_OF_A_SUM, rounded up][size]: parts of the sums */
} Residual;

/* y = dropout(activation(x)). */
typedef struct {
    int64_t type, rows, size, activation;
    const void *x; /* RELU: not needed for the gradient, and may be y */
    void *y;
    RowDropout dropout;
    const void *dy;
    void *dx;
} Activation;

/* Probabilities in place of logits, and the logit and log-probability of the label of each row. */
typedef struct {
    int64_t type, rows, size;
    void *logits;
    const int64_t *labels;
    float *label_logits, *label_log_probs;
} Softmax;

int attend_to_rows(const RowAttention *a, int is_backward, int threads); /* not 0: no memory */
void add_and_normalize(const Residual *r, int is_backward, int threads);
int is_invertible(const Norm *norm, int64_t size);
void activate(const Activation *a, int is_backward, int threads);
void to_probabilities(const Softmax *s, int threads);

#endif
