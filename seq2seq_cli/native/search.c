/* Greedy and beam search: from source ids to translations, with nothing but C between two tokens.

   A sentence leaves the batch as soon as it is finished: its columns of the KV cache are not used
   any more, and what is copied of the others are a few numbers of each. */

#include <stdlib.h>

#include "kernels.h"
#include "threads.h"

enum {
    MANY_LOGITS = 1 << 20, /* that pay for a second thread */
    NOT_A_TOKEN = -1,
};

/* A batch while it is decoded. Place b of a table belongs to sentence numbers[b] of the sources. */
typedef struct {
    const Model *models;
    int64_t num_models;
    const Stack *decoder; /* of the first model */
    const SearchOptions *options;
    const Sources *sources;
    Found *found;
    int threads;
    Batch batch;
    int32_t *numbers;
    int64_t *last;                  /* [sentences][width]: the last token of every hypothesis */
    float *sums;                    /* [sentences][width]: of its log-probabilities */
    float *logits;                  /* [sentences][width][outputs of the decoder] */
    float *further_logits;          /* of a model of an ensemble after the first */
    float *member_logits;           /* of the model at work: one of the two above */
    float *candidate_sums;          /* [sentences][2 beam], like the next two */
    int64_t *candidate_origins, *candidate_tokens;
    int64_t num_slots, most_slots;     /* in use; of the longest translations */
    int32_t *slots, *next_slots;    /* see Batch; NULL in greedy search */
    int32_t *fed;                   /* [sources][most_slots]: the token of each slot */
    void **memories;                /* [models]: see Batch, like the next three */
    void **blocks;                  /* [models][num_blocks] */
    int32_t *num_columns, *columns;
    int64_t num_allocated;             /* blocks */
    int64_t *texts;                 /* [sources][n_best]: numbers of the translations' texts */
    int32_t *ids;                   /* scratch for one translation */
    void *workspace;
} Search;

/* The tokens of every hypothesis so far. */
static int64_t length_of(const Search *s)
{
    return s->batch.length - 1; /* the first one that was fed is the beginning */
}

/* Token number `place` of the hypothesis in a row. */
static int32_t token_at(const Search *s, int64_t row, int64_t place)
{
    int64_t slot = s->slots ? s->slots[row * s->batch.length + place + 1] : place + 1;
    return s->fed[s->numbers[row / s->batch.width] * s->most_slots + slot];
}

/* Forbid every token that would end an n-gram a second time. */
static void forbid_repetition(const Search *s, int64_t row, float *logits)
{
    int64_t length = length_of(s), before = s->options->ngram - 1;
    for (int64_t start = 0; start + before < length; start++) {
        int64_t same = 0;
        while (same < before &&
               token_at(s, row, start + same) == token_at(s, row, length - before + same))
            same++;
        if (same == before)
            logits[token_at(s, row, start + before)] = -INFINITY;
    }
}

/* What decoding/search/logit_rules.py does. */
static void apply_rules(const Search *s, int64_t row, float *logits)
{
    const SearchOptions *o = s->options;
    int64_t number = s->numbers[row / s->batch.width], length = length_of(s);
    if (length >= s->sources->max_lengths[number]) {
        float end = logits[o->end];
        for (int64_t i = 0; i < s->decoder->output.outputs; i++)
            logits[i] = -INFINITY;
        logits[o->end] = end;
        return;
    }
    for (int64_t n = 0; n < o->num_forbidden; n++)
        logits[o->forbidden[n]] = -INFINITY;
    if (o->ngram)
        forbid_repetition(s, row, logits);
    if (length < s->sources->min_lengths[number])
        logits[o->end] = -INFINITY;
}

/* Greedy search: the next token of some sentences; the end where the rules leave none. */
static void choose_greatest(void *context, int64_t first, int64_t last, int thread)
{
    const Search *s = context;
    int64_t end = s->options->end, size = s->decoder->output.outputs;
    for (int64_t b = first; b < last; b++) {
        float *logits = s->logits + b * size;
        int is_finite = logits[end] < INFINITY;
        apply_rules(s, b, logits);
        int64_t token = kernels->find_greatest(size, logits);
        if (token < 0)
            token = end;
        s->last[b] = is_finite && logits[token] < INFINITY ? token : NOT_A_TOKEN;
    }
}

/* Beam search: the best continuations of the hypotheses of some sentences; the end with the sum
   -inf where there are fewer. The first sum is NaN if the model computes NaN or infinity. */
static void find_candidates(void *context, int64_t first, int64_t last, int thread)
{
    const Search *s = context;
    int64_t count = 2 * s->options->beam, width = s->batch.width, size = s->decoder->output.outputs;
    float log_members = logf(s->num_models); /* what the sums of probabilities add up to */
    for (int64_t b = first; b < last; b++) {
        Candidates c = {count, s->candidate_sums + b * count, s->candidate_origins + b * count,
                        s->candidate_tokens + b * count};
        int is_finite = 1;
        for (int64_t n = 0; n < count; n++) {
            c.sums[n] = -INFINITY;
            c.origins[n] = 0;
            c.tokens[n] = s->options->end;
        }
        for (int64_t w = 0; w < width; w++) {
            int64_t row = b * width + w;
            float *logits = s->logits + row * size;
            float total = s->num_models > 1 ? log_members : kernels->log_sum_exp(size, logits);
            is_finite &= total < INFINITY && !isnan(*logits);
            apply_rules(s, row, logits);
            kernels->add_candidates(&c, w, size, logits, s->sums[row] - total);
        }
        if (!is_finite)
            c.sums[0] = NAN;
    }
}

/* The divisor of the log-probability of a translation of `length` tokens, its end included; see
   decoding/search/beam.py: length_penalty. */
static double penalty(const SearchOptions *o, int64_t length)
{
    return pow(o->is_gnmt ? (5 + length) / 6. : length, o->alpha);
}

/* Whether a sentence has n_best translations, and one of that score would not enter. */
static int are_all_better(const Search *s, int64_t number, double score)
{
    int64_t n_best = s->options->n_best;
    return s->found->counts[number] == n_best &&
           s->found->scores[(number + 1) * n_best - 1] >= score;
}

/* Let the hypothesis of a row take its place among the translations of its sentence, behind others
   of the same score. */
static int finish(Search *s, int64_t row, double score)
{
    Found *f = s->found;
    int64_t number = s->numbers[row / s->batch.width], n_best = s->options->n_best;
    int64_t length = length_of(s), place = f->counts[number];
    if (are_all_better(s, number, score))
        return COMPLETED;
    for (int64_t i = 0; i < length; i++)
        s->ids[i] = token_at(s, row, i);
    double *scores = f->scores + number * n_best;
    int32_t *lengths = f->lengths + number * n_best, *ids = f->ids + number * n_best * f->longest;
    int64_t *texts = s->texts + number * n_best, text = 0;
    if (n_best > 1) {
        text = s->options->text_of(s->ids, length);
        if (text < 0)
            return STOPPED;
        for (place = 0; place < f->counts[number] && texts[place] != text;)
            place++;
        if (place < f->counts[number] && score <= scores[place])
            return COMPLETED;
    }
    if (place == n_best)
        place--;
    else if (place == f->counts[number])
        f->counts[number]++;
    for (; place > 0 && scores[place - 1] < score; place--) {
        scores[place] = scores[place - 1];
        texts[place] = texts[place - 1];
        lengths[place] = lengths[place - 1];
        memcpy(ids + place * f->longest, ids + (place - 1) * f->longest,
               lengths[place] * sizeof *ids);
    }
    scores[place] = score;
    texts[place] = text;
    lengths[place] = length;
    memcpy(ids + place * f->longest, s->ids, length * sizeof *ids);
    return COMPLETED;
}

/* Sentence b goes on, and is at place `to` from now on. */
static void keep(Search *s, int64_t b, int64_t to)
{
    Batch *batch = &s->batch;
    s->numbers[to] = s->numbers[b];
    batch->starts[to] = batch->starts[b];
    batch->lengths[to] = batch->lengths[b];
    memmove(s->columns + to * batch->num_blocks, s->columns + b * batch->num_blocks,
            s->num_allocated * sizeof *s->columns);
}

static int advance_greedy(Search *s)
{
    int64_t sentences = s->batch.sentences, to = 0;
    int64_t num_logits = sentences * s->decoder->output.outputs;
    parallel(num_logits < MANY_LOGITS ? 1 : s->threads, sentences, choose_greatest, s);
    for (int64_t b = 0; b < sentences; b++) {
        if (s->last[b] == NOT_A_TOKEN) {
            s->found->failed = s->numbers[b];
            return NOT_FINITE;
        }
        if (s->last[b] == s->options->end) {
            finish(s, b, 0);
            continue;
        }
        keep(s, b, to);
        s->last[to++] = s->last[b];
    }
    s->batch.sentences = to;
    return COMPLETED;
}

/* Of a sentence's candidates, finish those that end if they are in the better half; the best that
   do not end become the hypotheses at place `to`. */
static int divide_candidates(Search *s, int64_t b, int64_t to)
{
    int64_t beam = s->options->beam, width = s->batch.width, length = s->batch.length;
    const float *sums = s->candidate_sums + b * 2 * beam;
    const int64_t *origins = s->candidate_origins + b * 2 * beam;
    const int64_t *tokens = s->candidate_tokens + b * 2 * beam;
    if (isnan(sums[0])) {
        s->found->failed = s->numbers[b];
        return NOT_FINITE;
    }
    for (int64_t n = 0, w = 0; w < beam; n++) {
        if (tokens[n] == s->options->end && sums[n] > -INFINITY) { /* so of `width` at most */
            double score = sums[n] / penalty(s->options, length_of(s) + 1);
            int status = n < beam ? finish(s, b * width + origins[n], score) : COMPLETED;
            if (status)
                return status;
            continue;
        }
        int32_t *slots = s->next_slots + (to * beam + w) * (length + 1);
        memcpy(slots, s->slots + (b * width + origins[n]) * length, length * sizeof *slots);
        slots[length] = s->num_slots + w;
        s->sums[to * beam + w] = sums[n];
        s->last[to * beam + w] = tokens[n];
        w++;
    }
    return COMPLETED;
}

/* Whether no hypothesis at this place can become one of the n best translations: log-probability
   only falls, and none is divided by more than the longest one. */
static int is_finished(const Search *s, int64_t b, int64_t to)
{
    int64_t number = s->numbers[b], longest = s->sources->max_lengths[number] + 1;
    float best = s->sums[to * s->options->beam];
    return !isfinite(best) || are_all_better(s, number, best / penalty(s->options, longest));
}

static int advance_beam(Search *s)
{
    int64_t sentences = s->batch.sentences, to = 0;
    int64_t num_logits = sentences * s->batch.width * s->decoder->output.outputs;
    parallel(num_logits < MANY_LOGITS ? 1 : s->threads, sentences, find_candidates, s);
    for (int64_t b = 0; b < sentences; b++) {
        int status = divide_candidates(s, b, to);
        if (status)
            return status;
        if (!is_finished(s, b, to))
            keep(s, b, to++);
    }
    int32_t *slots = s->slots;
    s->slots = s->next_slots;
    s->next_slots = slots;
    s->batch.slots = s->slots;
    s->batch.sentences = to;
    s->batch.width = s->options->beam;
    return COMPLETED;
}

/* Allocate a block of the KV cache of every model. */
static int add_block(Search *s)
{
    Batch *b = &s->batch;
    for (int64_t m = 0; m < s->num_models; m++) {
        const Stack *decoder = s->models[m].decoder;
        int64_t numbers = decoder->num_layers * SLOTS * b->sentences * 2 * decoder->d_model;
        void *block = malloc(numbers * kv_size(decoder));
        if (!block)
            return NO_MEMORY;
        s->blocks[m * b->num_blocks + s->num_allocated] = block;
    }
    for (int64_t n = 0; n < b->sentences; n++)
        s->columns[n * b->num_blocks + s->num_allocated] = n;
    s->num_columns[s->num_allocated++] = b->sentences;
    return COMPLETED;
}

/* Give every hypothesis a slot for its last token. */
static int add_slots(Search *s)
{
    Batch *b = &s->batch;
    b->length++;
    for (int64_t row = 0; row < b->sentences * b->width; row++)
        s->fed[s->numbers[row / b->width] * s->most_slots + s->num_slots + row % b->width] =
            s->last[row];
    s->num_slots += b->width;
    while (s->num_slots > s->num_allocated * SLOTS)
        if (add_block(s))
            return NO_MEMORY;
    return COMPLETED;
}

/* Turn the logits of the first model of an ensemble into log-probabilities in some rows, or add the
   probabilities of another one to them. A row of NaN tells that a model computes NaN or infinity. */
static void add_probabilities(void *context, int64_t first, int64_t last, int thread)
{
    const Search *s = context;
    int64_t size = s->decoder->output.outputs, vocabulary = s->decoder->vocabulary;
    int is_first = s->member_logits == s->logits;
    for (int64_t row = first; row < last; row++) {
        const float *x = s->member_logits + row * size;
        float *y = s->logits + row * size, total = kernels->log_sum_exp(size, x);
        if (!(total < INFINITY) || isnan(*y))
            for (int64_t i = 0; i < size; i++)
                y[i] = NAN;
        else if (is_first)
            for (int64_t i = 0; i < vocabulary; i++)
                y[i] -= total;
        else
            kernels->add_in_log_space(vocabulary, x, -total, y);
    }
}

/* The logits of the next token. An ensemble has logarithms of sums of probabilities instead. */
static void compute_logits(Search *s)
{
    Batch *b = &s->batch;
    int64_t rows = b->sentences * b->width, num_logits = rows * s->decoder->output.outputs;
    for (int64_t m = 0; m < s->num_models; m++) {
        const Model *model = s->models + m;
        b->memory = s->memories[m];
        b->blocks = s->blocks + m * b->num_blocks;
        s->member_logits = m ? s->further_logits : s->logits;
        decode(model->decoder, b, s->last, model->positions, s->member_logits, s->workspace,
               s->threads);
        if (s->num_models > 1)
            parallel(num_logits < MANY_LOGITS ? 1 : s->threads, rows, add_probabilities, s);
    }
}

/* A part of the memory at `base`, of which `size` bytes are taken; NULL to find out how many. */
static void *take(char *base, size_t *size, size_t bytes)
{
    size_t start = *size;
    *size += (bytes + 63) / 64 * 64;
    return base ? base + start : NULL;
}

static size_t greater(size_t a, size_t b) { return a > b ? a : b; }

/* Divide memory among the tables of a search; return how many bytes these are. */
static size_t lay_out(Search *s, char *base)
{
    size_t count = s->sources->count, beam = s->options->beam, rows = count * beam;
    size_t steps = s->found->longest + 1, num_blocks = (s->most_slots + SLOTS - 1) / SLOTS;
    int64_t longest = s->sources->longest > (int64_t)steps ? s->sources->longest : (int64_t)steps;
    size_t size = 0, scratch = 0, num_logits = rows * s->decoder->output.outputs;
    size_t of_slots = beam > 1 ? rows * (steps + 1) * sizeof *s->slots : 0; /* of the next step */
    Batch *b = &s->batch;
    s->memories = take(base, &size, s->num_models * sizeof *s->memories);
    for (int64_t m = 0; m < s->num_models; m++) {
        const Stack *encoder = s->models[m].encoder;
        size_t numbers = s->sources->rows * encoder->output.outputs;
        float *memory = take(base, &size, numbers * sizeof *memory);
        if (base)
            s->memories[m] = memory;
        scratch = greater(scratch, workspace_size(encoder, s->sources->rows, s->sources->longest,
                                                  s->threads));
        scratch = greater(scratch, workspace_size(s->models[m].decoder, rows, longest, s->threads));
    }
    s->workspace = take(base, &size, scratch);
    s->logits = take(base, &size, num_logits * sizeof *s->logits);
    if (s->num_models > 1)
        s->further_logits = take(base, &size, num_logits * sizeof *s->logits);
    b->starts = take(base, &size, count * sizeof *b->starts);
    b->lengths = take(base, &size, count * sizeof *b->lengths);
    s->numbers = take(base, &size, count * sizeof *s->numbers);
    s->last = take(base, &size, rows * sizeof *s->last);
    s->sums = take(base, &size, rows * sizeof *s->sums);
    s->candidate_sums = take(base, &size, 2 * rows * sizeof *s->candidate_sums);
    s->candidate_origins = take(base, &size, 2 * rows * sizeof *s->candidate_origins);
    s->candidate_tokens = take(base, &size, 2 * rows * sizeof *s->candidate_tokens);
    s->fed = take(base, &size, count * s->most_slots * sizeof *s->fed);
    s->blocks = take(base, &size, s->num_models * num_blocks * sizeof *s->blocks);
    s->num_columns = take(base, &size, num_blocks * sizeof *s->num_columns);
    s->columns = take(base, &size, count * num_blocks * sizeof *s->columns);
    s->texts = take(base, &size, count * s->options->n_best * sizeof *s->texts);
    s->ids = take(base, &size, steps * sizeof *s->ids);
    s->slots = of_slots ? take(base, &size, of_slots) : NULL;
    s->next_slots = of_slots ? take(base, &size, of_slots) : NULL;
    b->num_blocks = num_blocks;
    b->num_columns = s->num_columns;
    b->columns = s->columns;
    b->slots = s->slots;
    return size;
}

/* Every sentence begins with one hypothesis, which is empty. */
static void start(Search *s)
{
    const Sources *sources = s->sources;
    s->batch.sentences = sources->count;
    s->batch.longest = sources->longest;
    s->batch.width = 1;
    for (int64_t b = 0; b < sources->count; b++) {
        s->numbers[b] = b;
        s->last[b] = s->options->begin;
        s->sums[b] = 0;
        if (s->slots)
            s->slots[b] = 0;
    }
    for (int64_t m = 0; m < s->num_models; m++) {
        s->batch.memory = s->memories[m];
        encode(s->models[m].encoder, &s->batch, sources->rows, sources->ids, s->options->pad,
               sources->places, s->models[m].positions, s->workspace, s->threads);
    }
}

int search(const Model *models, int64_t num_models, const SearchOptions *options,
           const Sources *sources, Found *found, int threads)
{
    Search s = {.models = models, .num_models = num_models, .decoder = models->decoder,
                .options = options, .sources = sources, .found = found, .threads = threads,
                .most_slots = 1 + found->longest * options->beam};
    size_t size = lay_out(&s, NULL);
    char *tables = malloc(size);
    if (!tables)
        return NO_MEMORY;
    lay_out(&s, tables);
    memset(s.blocks, 0, num_models * s.batch.num_blocks * sizeof *s.blocks);
    start(&s);
    int status = COMPLETED;
    while (s.batch.sentences > 0 && !status && !(status = add_slots(&s))) {
        compute_logits(&s);
        status = options->beam > 1 ? advance_beam(&s) : advance_greedy(&s);
    }
    for (int64_t n = 0; n < num_models * s.batch.num_blocks; n++)
        free(s.blocks[n]);
    free(tables);
    return status;
}
