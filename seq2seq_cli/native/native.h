/* Structures that library.py fills, and what the files of this folder call of each other. */

#ifndef NATIVE_H
#define NATIVE_H

#include <stdint.h>

enum {
    LANES = 16,           /* numbers in a vector */
    PANELS = 4,           /* vectors of outputs in a group */
    GROUP = LANES * PANELS,
    SLOTS = 32,           /* positions in a block of the KV cache */
};

enum { FP32, BF16, INT8 };

enum { NONE, RELU, GELU, SILU };

typedef struct {
    int64_t inputs, outputs, precision;
    const int32_t *weight; /* [groups][words][PANELS][LANES], padded with 0 */
    const float *bias;     /* of every output, padded to whole groups like the next two */
    const float *scale;    /* scale and shift: INT8 only */
    const int32_t *shift;
} Linear;

typedef struct {
    const float *weight, *bias; /* of LayerNorm; NULL if there is no norm */
    float epsilon;
} Norm;

typedef struct {
    Linear qkv, out; /* self-attention: queries, keys and values side by side; output projection */
    Norm self_attention_norm;
    Linear query, cross_out; /* cross-attention, in a decoder only */
    Norm cross_attention_norm;
    Linear expand, contract;
    Norm feed_forward_norm;
} Layer;

/* An encoder or a decoder. */
typedef struct {
    int64_t num_layers, d_model, heads, d_ff, norm_first, activation, vocabulary;
    int64_t is_rotary; /* positions rotate queries and keys of self-attention */
    int64_t rotates_memory; /* and of cross-attention */
    const float *embedding; /* [vocabulary][d_model], scaled as in the model */
    const float *ngrams;    /* the same of hashed n-grams of tokens, [ngram_buckets][d_model], or NULL */
    int64_t longest_ngram, ngram_buckets;
    const Layer *layers;
    Norm norm;     /* after the last layer */
    Linear output; /* encoder: keys and values of all decoder layers; decoder: logits */
} Stack;

/* Sentences that are being decoded. Keys and values of the past are stored in slots; every
   hypothesis has a list of the slots of its own past. */
typedef struct {
    int64_t sentences, longest;      /* sentences; positions of the longest source */
    int32_t *starts, *lengths;       /* of every source: its first position, its positions */
    void *memory;                    /* [positions][layers][2][d_model]: keys, then values. It has
                                        room for floats; if they are bf16, these fill a half */
    int64_t width, length;           /* hypotheses of a sentence; positions, the new one included */
    const int32_t *slots;            /* [sentences][width][length]; NULL: slots 0 to length - 1 */
    int64_t num_blocks;              /* of the KV cache, each of SLOTS slots */
    void *const *blocks;             /* of a block: [layers][num_columns][SLOTS][2][d_model] */
    const int32_t *num_columns;      /* of a block: the sentences when it was allocated */
    const int32_t *columns;          /* [sentences][num_blocks]: a sentence's column in a block */
} Batch;

/* Bytes of a number among the keys and values of a stack. They are bf16 unless the weights are FP32,
   as attention is bound by memory. */
int64_t kv_size(const Stack *stack);

/* Bytes of scratch memory that a pass needs. */
int64_t workspace_size(const Stack *stack, int64_t rows, int64_t longest, int threads);

/* Encode the sources of a batch into its memory, one after the other without padding. `ids`:
   [sentences][longest], of which `rows` are not `pad`; `places`: the position of each id, NULL for
   0, 1, 2 and so on; `positions`: for each position a vector of d_model that is added to the
   embedding or, if it is rotary, the rotations of a head. */
void encode(const Stack *encoder, const Batch *b, int64_t rows, const int64_t *ids, int64_t pad,
            const int64_t *places, const float *positions, void *workspace, int threads);

/* One step: logits of the next token, [sentences][width][vocabulary]. `ids`: the last token of every
   hypothesis, whose keys and values are stored in its last slot; `positions`: see encode. */
void decode(const Stack *decoder, const Batch *b, const int64_t *ids, const float *positions,
            float *logits, void *workspace, int threads);

/* The logarithm of the sum of e^x of every row. */
void log_sum_exp(int64_t rows, int64_t size, const float *x, float *y, int threads);

/* Sentences to translate. */
typedef struct {
    int64_t count, longest, rows; /* sentences; ids of the longest; ids of all, without padding */
    const int64_t *ids, *places;  /* [count][longest]; see encode */
    const int64_t *min_lengths, *max_lengths; /* of each translation, without its end */
} Sources;

typedef struct {
    int64_t pad, begin, end; /* tokens */
    int64_t beam, n_best;    /* hypotheses of a sentence, 1: greedy search; translations of each */
    int64_t is_gnmt;         /* the formula of the length penalty */
    double alpha;            /* its exponent */
    int64_t ngram;           /* tokens of an n-gram that may not occur twice; 0: any may */
    int64_t num_forbidden;   /* tokens that are never chosen */
    const int64_t *forbidden;
    /* The number of the text of a translation; of several with one text, the best is kept. Negative:
       the search stops. NULL if n_best is 1. */
    int64_t (*text_of)(const int32_t *ids, int64_t length);
} SearchOptions;

/* Translations of every sentence, the best first. */
typedef struct {
    int64_t longest;  /* room for the tokens of a translation: the greatest maximum length */
    int32_t *counts;  /* of each sentence: its translations, 0 at first */
    int32_t *lengths; /* [sentences][n_best]: tokens, without the end */
    int32_t *ids;     /* [sentences][n_best][longest] */
    double *scores;   /* [sentences][n_best]: log-probability by length penalty; 0 in greedy search */
    int64_t failed;   /* the sentence for which the model computes NaN or infinity */
} Found;

enum { COMPLETED, NO_MEMORY, NOT_FINITE, STOPPED }; /* of search and score */

/* A model, or a member of an ensemble. */
typedef struct {
    const Stack *encoder, *decoder;
    const float *positions; /* see encode */
} Model;

/* Translate a batch. Several models, of one vocabulary, are an ensemble: they search with the mean
   of their probabilities. */
int search(const Model *models, int64_t num_models, const SearchOptions *options,
           const Sources *sources, Found *found, int threads);

/* Given translations of sources. */
typedef struct {
    int64_t pad, begin;    /* tokens */
    int64_t longest, rows; /* tokens of the longest, its end included; of all, without padding */
    const int64_t *ids;    /* [sources][longest] */
    float *log_probs;      /* of each token, one translation after the other */
    float *attention;      /* [rows][the longest source]: the mean of all heads of the layer before
                              the last, which aligns best (Garg et al. 2019); NULL: not asked for */
} Targets;

/* Score translations of a batch. */
int score(const Stack *encoder, const Stack *decoder, const float *positions,
          const Sources *sources, const Targets *targets, int threads);

#endif
