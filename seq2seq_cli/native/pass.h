/* A forward pass of some rows through a stack, and its parts. */

#ifndef PASS_H
#define PASS_H

#include "native.h"
#include "threads.h"

typedef struct {
    const Stack *stack;
    const float *positions; /* see encode */
    int64_t rows, longest; /* rows; the most positions that one of them attends to */
    int threads, in_attention; /* threads of the pass, and of attention */
    int kv_type; /* of keys and values: see kv_size */
    void *q; /* inputs of linear layers as words */
    float *states, *normed, *heads, *wide; /* rows of d_model; of `wide`, of 3 d_model or d_ff */
    const void **keys; /* of the positions that a row attends to, for each thread; like scores */
    float *scores;
    int32_t *sentences, *places; /* of every row, and its position there */
} Pass;

/* Attention in some layer of a batch. */
typedef struct {
    const Pass *pass;
    const Batch *batch;
    int64_t layer;
    float *weights; /* [rows][longest source]: of the sources, mean of the heads; may be NULL */
} Attention;

Pass begin(const Stack *stack, const float *positions, int64_t rows, int64_t longest,
           void *workspace, int threads);

/* The state of a row is the embedding of its token; an id that is no token gets the vector of token
   0: a search among NaN logits may ask for one. */
void embed(const Pass *p, int64_t row, int64_t id, int64_t position);

/* A thread's list of keys. */
const void **keys_of(const Pass *p, int thread);

/* The key of self-attention of a row, until self-attention ends; its value follows d_model numbers
   later. */
void *own_key(const Pass *p, int64_t row);

/* softmax(q K) V for every head of a row; the queries include the scale of the scores. keys_of()
   points to the keys of each position, all heads side by side; its values follow d_model later.
   `weights` gets the mean of the heads' softmax, and may be NULL. */
void attend(const Pass *p, int64_t count, const float *q, int64_t row, int thread, float *weights);

/* A linear layer of all rows; `y` may be the residual that is added, which may be NULL. */
void linear(const Linear *layer, int activation, int64_t rows, const float *x,
            const float *residual, float *y, void *q, int threads);

/* LayerNorm of the states into `y`, which may be the states; does nothing if there is no norm. */
void layer_norm(const Pass *p, const Norm *norm, float *y);

/* A layer of the decoder, whose self-attention is the task. */
void decoder_layer(Attention *a, Task *to_past);

#endif
