/* Kernels of training, with the vectors of kernels_template.h, which includes this file. */

INLINE const void *row_of(const int type, const void *x, int64_t number)
{
    return (const char *)x + number * (type == BF16 ? 2 : 4);
}
INLINE vec load_some(const int type, const void *row, int64_t i, int64_t size)
{
    if (type == BF16)
        return load_bf16((const uint16_t *)row + i, size - i);
    return load_first((const float *)row + i, size - i);
}
INLINE void store_some(const int type, void *row, int64_t i, int64_t size, vec x)
{
    if (type == BF16)
        store_bf16((uint16_t *)row + i, size - i, x);
    else
        store_first((float *)row + i, size - i, x);
}

/* The hash "lowbias32" of C. Wellons. */
INLINE ivec random_bits(uint32_t key, int64_t i)
{
    ivec x = iadd(ibroadcast(key + (uint32_t)i), lanes());
    x = imul(ixor(x, ishift(x, 16)), ibroadcast(0x7feb352d));
    x = imul(ixor(x, ishift(x, 15)), ibroadcast((int32_t)0x846ca68b));
    return ixor(x, ishift(x, 16));
}
/* The upper half of the hash of SplitMix64 (Steele et al. 2014). */
INLINE uint32_t key_of_row(const RowDropout *d, int64_t row)
{
    uint64_t place = d->places ? d->places[row] : row;
    uint64_t x = d->key + place * 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return (x ^ x >> 31) >> 32;
}
INLINE vec drop(const RowDropout *d, uint32_t key, int64_t i, vec x)
{
    if (!d->least)
        return x;
    return keep_where(mul(x, broadcast(d->scale)), random_bits(key, i), d->least);
}

static float *allocate(int64_t count)
{
    float *memory = calloc(count, sizeof *memory);
    if (memory == NULL)
        abort(); /* a few kilobytes */
    return memory;
}

/* ---- attention ---- */

enum { QUERIES = 32 }; /* rows of attention weights at once */

/* c[m][n] += Σ a[m][i] b[i][n], for `rows` m and whole vectors of n; `a` by strides. */
INLINE void product_tile(const int rows, const int vectors, int64_t depth, const float *a,
                         int64_t a_row, int64_t a_column, const float *b, int64_t b_row, float *c,
                         int64_t c_row)
{
    vec sums[TILE_ROWS][2];
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < vectors; v++)
            sums[r][v] = load(c + r * c_row + v * LANES);
    for (int64_t i = 0; i < depth; i++)
        for (int v = 0; v < vectors; v++) {
            vec part = load(b + i * b_row + v * LANES);
            for (int r = 0; r < rows; r++)
                sums[r][v] = mul_add(broadcast(a[r * a_row + i * a_column]), part, sums[r][v]);
        }
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < vectors; v++)
            store(c + r * c_row + v * LANES, sums[r][v]);
}

/* As above, for m rows and n columns, rounded up to whole tiles, which all matrices have room for. */
NOINLINE static void add_product(int64_t m, int64_t n, int64_t depth, const float *a, int64_t a_row,
                                 int64_t a_column, const float *b, int64_t b_row, float *c,
                                 int64_t c_row)
{
#define TILES(rows, vectors) \
    for (int64_t row = 0; row < m; row += rows) \
        product_tile(rows, vectors, depth, a + row * a_row, a_row, a_column, b + column, b_row, \
                     c + row * c_row + column, c_row)
    for (int64_t column = 0; column < n;) {
        if (TILE_ROWS == 8 && n - column > LANES) {
            TILES(TILE_ROWS / 2, 2);
            column += 2 * LANES;
        } else {
            TILES(TILE_ROWS, 1);
            column += LANES;
        }
    }
#undef TILES
}

/* softmax of the first `count` scores in place; up to `width` zeros. NaN and infinity become NaN. */
INLINE void to_weights(float *scores, int64_t count, int64_t width)
{
    vec total = zeros(), top = greatest_lanes(count, scores);
    top = broadcast(greatest_of(top));
    for (int64_t i = 0; i < count; i += LANES) {
        vec off = sub(load(scores + i), top);
        vec power = mul_add(off, zeros(), exponential(max(off, broadcast(-87))));
        power = fill(power, count - i, 0);
        store(scores + i, power);
        total = add(total, power);
    }
    vec share = broadcast(1 / sum_of(total));
    int64_t i = 0;
    for (; i < count; i += LANES)
        store(scores + i, mul(load(scores + i), share));
    for (; i < width; i += LANES)
        store(scores + i, zeros());
}

/* Vectors of one head of some rows, in fp32: [rows][width], or transposed, [width][columns]. */
typedef struct {
    int64_t first, count; /* rows of a sentence */
    const void *x;     /* the head's numbers of the first row */
    int64_t stride;
    float scale;
    int64_t ahead; /* numbers from a row to what is needed next there */
} Vectors;

/* The next head, or after the last one the first head of the next sentence. */
INLINE int64_t ahead_of(const RowAttention *a, int64_t head, int64_t rows, int64_t stride)
{
    return head + 1 < a->heads ? a->size : rows * stride - head * a->size;
}
/* Rows are far apart, which hardware prefetchers miss. */
INLINE void prefetch(const int type, const Vectors *of, const void *row, int64_t size)
{
    const char *next = row_of(type, row, of->ahead);
    const int64_t bytes = size * (type == BF16 ? 2 : 4);
    for (int64_t i = 0; i < bytes; i += 64)
        __builtin_prefetch(next + i);
}

INLINE void gather(const int type, const RowAttention *a, const Vectors *from, int rotates, int64_t width,
                   float *y)
{
    for (int64_t r = 0; r < from->count; r++, y += width) {
        const void *row = row_of(type, from->x, r * from->stride);
        int64_t position = (from->first + r) * a->size;
        prefetch(type, from, row, a->size);
        for (int64_t i = 0; i < width; i += LANES) {
            vec x = load_some(type, row, i, a->size);
            if (rotates && a->cosines) {
                vec turned = mul(swap_pairs(x), load_first(a->sines + position + i, a->size - i));
                x = mul_add(x, load_first(a->cosines + position + i, a->size - i), turned);
            }
            store(y + i, mul(x, broadcast(from->scale)));
        }
    }
}
/* The inverse, of gradients: scaled, and rotated back. */
INLINE void scatter(const int type, const RowAttention *a, const Vectors *to, int rotates, int64_t width,
                    const float *y)
{
    for (int64_t r = 0; r < to->count; r++, y += width) {
        void *row = (void *)row_of(type, to->x, r * to->stride);
        int64_t position = (to->first + r) * a->size;
        prefetch(type, to, row, a->size);
        for (int64_t i = 0; i < a->size; i += LANES) {
            vec x = mul(load(y + i), broadcast(to->scale));
            if (rotates && a->cosines) {
                vec turned = mul(swap_pairs(x), load_first(a->sines + position + i, a->size - i));
                x = sub(mul(x, load_first(a->cosines + position + i, a->size - i)), turned);
            }
            store_some(type, row, i, a->size, x);
        }
    }
}
static void transpose(int64_t rows, int64_t width, int64_t columns, const float *x, float *y)
{
    for (int64_t i = 0; i < width; i++) {
        for (int64_t r = 0; r < rows; r++)
            y[i * columns + r] = x[r * width + i];
        for (int64_t r = rows; r < columns; r++)
            y[i * columns + r] = 0;
    }
}

INLINE int64_t whole_vectors(int64_t count)
{
    return (count + LANES - 1) / LANES * LANES;
}

/* Scratch memory of a head of a sentence with `columns` rows of memory, rounded up. */
typedef struct {
    float *q, *dy, *dq;                         /* [QUERIES][width] */
    float *weights, *dropped, *dweights;        /* [QUERIES][columns] */
    float *keys, *values, *across, *dkeys, *dvalues; /* [columns][width]; keys across */
    float *values_across;
} Scratch;

static Scratch scratch_of(float *memory, int64_t width, int64_t columns)
{
    Scratch s;
    float **small[] = {&s.q, &s.dy, &s.dq}, **flat[] = {&s.weights, &s.dropped, &s.dweights};
    float **large[] = {&s.keys, &s.values, &s.across, &s.dkeys, &s.dvalues, &s.values_across};
    for (int i = 0; i < 3; i++, memory += QUERIES * width)
        *small[i] = memory;
    for (int i = 0; i < 3; i++, memory += QUERIES * columns)
        *flat[i] = memory;
    for (int i = 0; i < 6; i++, memory += columns * width)
        *large[i] = memory;
    return s;
}

/* Weights of some queries, and the same with dropout, [queries][columns]. */
INLINE void compute_weights(const RowAttention *a, const Scratch *s, int64_t sentence, int64_t head,
                            int64_t first, int64_t count, int64_t memory, int64_t width,
                            int64_t columns)
{
    memset(s->weights, 0, count * columns * sizeof(float));
    int64_t reach = a->is_causal ? first + count : memory;
    add_product(count, reach, a->size, s->q, width, 1, s->across, columns, s->weights, columns);
    for (int64_t r = 0; r < count; r++) {
        float *row = s->weights + r * columns, *dropped = s->dropped + r * columns;
        to_weights(row, a->is_causal ? first + r + 1 : memory, columns);
        if (!a->dropout.least)
            continue;
        uint32_t key = key_of_row(&a->dropout, a->starts[sentence] + first + r);
        for (int64_t i = 0; i < reach; i += LANES)
            store(dropped + i, drop(&a->dropout, key, (head << 20) + i, load(row + i)));
    }
}

INLINE void attend_in(const int type, const int is_backward, const RowAttention *a, int64_t begin,
                      int64_t end)
{
    int64_t width = whole_vectors(a->size), longest = 0;
    for (int64_t item = begin; item < end; item++) {
        int64_t memory = a->memory_lengths[item / a->heads];
        longest = memory > longest ? memory : longest;
    }
    longest = whole_vectors(longest);
    int64_t count = 3 * QUERIES * (width + longest) + 6 * longest * width;
    float *memory_of_all = calloc(count, sizeof *memory_of_all);
    if (memory_of_all == NULL) {
        __atomic_store_n(a->lacks_memory, 1, __ATOMIC_RELAXED);
        return;
    }
    for (int64_t item = begin; item < end; item++) {
        int64_t sentence = item / a->heads, head = item % a->heads, place = head * a->size;
        int64_t memory = a->memory_lengths[sentence], columns = whole_vectors(memory);
        Scratch s = scratch_of(memory_of_all, width, columns);
        int64_t from = a->memory_starts[sentence] * a->k_stride + place;
        int64_t ahead = ahead_of(a, head, memory, a->k_stride);
        Vectors keys = {0, memory, row_of(type, a->k, from), a->k_stride, 1, ahead};
        Vectors values = {0, memory, row_of(type, a->v, from), a->k_stride, 1, ahead};
        gather(type, a, &keys, 1, width, s.keys);
        gather(type, a, &values, 0, width, s.values);
        transpose(memory, width, columns, s.keys, s.across);
        if (is_backward) {
            transpose(memory, width, columns, s.values, s.values_across);
            memset(s.dkeys, 0, 2 * columns * width * sizeof(float)); /* and dvalues */
        }
        const float *applied = a->dropout.least ? s.dropped : s.weights;
        int64_t queries = a->lengths[sentence], y_stride = a->heads * a->size;
        int64_t y_ahead = ahead_of(a, head, queries, y_stride);
        for (int64_t first = 0; first < queries; first += QUERIES) {
            int64_t count = queries - first < QUERIES ? queries - first : QUERIES;
            int64_t reach = a->is_causal ? first + count : memory;
            int64_t row = a->starts[sentence] + first, to = row * y_stride + place;
            Vectors q = {first, count, row_of(type, a->q, row * a->q_stride + place), a->q_stride,
                         a->scale, ahead_of(a, head, queries, a->q_stride)};
            gather(type, a, &q, 1, width, s.q);
            compute_weights(a, &s, sentence, head, first, count, memory, width, columns);
            if (!is_backward) {
                memset(s.dq, 0, count * width * sizeof(float)); /* serves for y */
                add_product(count, width, reach, applied, columns, 1, s.values, width, s.dq, width);
                Vectors y = {first, count, row_of(type, a->y, to), y_stride, 1, y_ahead};
                scatter(type, a, &y, 0, width, s.dq);
                continue;
            }
            Vectors dy = {first, count, row_of(type, a->dy, to), y_stride, 1, y_ahead};
            gather(type, a, &dy, 0, width, s.dy);
            add_product(reach, width, count, applied, 1, columns, s.dy, width, s.dvalues, width);
            memset(s.dweights, 0, count * columns * sizeof(float));
            add_product(count, reach, a->size, s.dy, width, 1, s.values_across, columns, s.dweights,
                        columns);
            for (int64_t r = 0; r < count; r++) {
                float *weights = s.weights + r * columns, *d = s.dweights + r * columns;
                uint32_t key = a->dropout.least ? key_of_row(&a->dropout, row + r) : 0;
                vec sum = zeros();
                for (int64_t i = 0; i < reach; i += LANES) {
                    vec dweight = drop(&a->dropout, key, (head << 20) + i, load(d + i));
                    store(d + i, dweight);
                    sum = mul_add(load(weights + i), dweight, sum);
                }
                vec mean = broadcast(sum_of(sum));
                for (int64_t i = 0; i < reach; i += LANES)
                    store(d + i, mul(load(weights + i), sub(load(d + i), mean)));
            }
            add_product(reach, width, count, s.dweights, 1, columns, s.q, width, s.dkeys, width);
            memset(s.dq, 0, count * width * sizeof(float));
            add_product(count, width, reach, s.dweights, columns, 1, s.keys, width, s.dq, width);
            Vectors dq = q;
            dq.x = row_of(type, a->dq, row * a->q_stride + place);
            scatter(type, a, &dq, 1, width, s.dq);
        }
        if (is_backward) {
            Vectors dkeys = keys, dvalues = values;
            dkeys.x = row_of(type, a->dk, from);
            dvalues.x = row_of(type, a->dv, from);
            scatter(type, a, &dkeys, 1, width, s.dkeys);
            scatter(type, a, &dvalues, 0, width, s.dvalues);
        }
    }
    free(memory_of_all);
}

/* ---- residual connection with dropout and LayerNorm ---- */

/* Mean and inverse standard deviation. */
INLINE void find_moments(const int type, const Norm *norm, int64_t size, const void *row, float *m)
{
    vec sum = zeros(), squares = zeros();
    for (int64_t i = 0; i < size; i += LANES)
        sum = add(sum, load_some(type, row, i, size));
    m[0] = sum_of(sum) / size;
    for (int64_t i = 0; i < size; i += LANES) {
        vec off = fill(sub(load_some(type, row, i, size), broadcast(m[0])), size - i, 0);
        squares = mul_add(off, off, squares);
    }
    float variance = sum_of(squares) / size;
    m[1] = variance < INFINITY ? 1 / sqrtf(variance + norm->epsilon) : NAN; /* as in decoding */
}

INLINE void residual_forward_in(const int type, const Residual *r, int64_t row)
{
    int64_t size = r->size;
    void *sum = (void *)row_of(type, r->sum, row * size);
    if (r->y) {
        const void *y = row_of(type, r->y, row * size);
        uint32_t key = r->dropout.least ? key_of_row(&r->dropout, row) : 0;
        for (int64_t i = 0; i < size; i += LANES) {
            vec added = drop(&r->dropout, key, i, load_some(type, y, i, size));
            if (r->x)
                added = add(added, load_some(type, row_of(type, r->x, row * size), i, size));
            store_some(type, sum, i, size, added);
        }
    }
    if (!r->norm.weight)
        return;
    void *normed = (void *)row_of(type, r->normed, row * size);
    float *m = r->moments + 2 * row;
    find_moments(type, &r->norm, size, sum, m);
    for (int64_t i = 0; i < size; i += LANES) {
        vec off = mul(sub(load_some(type, sum, i, size), broadcast(m[0])), broadcast(m[1]));
        store_some(type, normed, i, size,
                   mul_add(off, load_first(r->norm.weight + i, size - i),
                           load_first(r->norm.bias + i, size - i)));
    }
}

/* What weight and bias were applied to: from the sum, or from the result and inverse weights. */
INLINE vec standardized(const int type, const Residual *r, const float *inverse, int64_t row, int64_t i)
{
    int64_t size = r->size;
    const float *m = r->moments + 2 * row;
    if (r->sum) {
        vec sum = load_some(type, row_of(type, r->sum, row * size), i, size);
        return mul(sub(sum, broadcast(m[0])), broadcast(m[1]));
    }
    vec normed = load_some(type, row_of(type, r->normed, row * size), i, size);
    return mul(sub(normed, load_first(r->norm.bias + i, size - i)), load_first(inverse + i, size - i));
}

INLINE void residual_backward_in(const int type, const Residual *r, const float *inverse, int64_t row,
                                 float *dweight, float *dbias)
{
    int64_t size = r->size;
    const void *dnormed = row_of(type, r->dnormed, row * size);
    const float *m = r->moments + 2 * row;
    vec mean_d = zeros(), mean_product = zeros();
    if (r->norm.weight) {
        for (int64_t i = 0; i < size; i += LANES) {
            vec off = standardized(type, r, inverse, row, i);
            vec d = load_some(type, dnormed, i, size); /* 0 beyond the row */
            store_first(dweight + i, size - i, mul_add(d, off, load_first(dweight + i, size - i)));
            store_first(dbias + i, size - i, add(d, load_first(dbias + i, size - i)));
            d = mul(d, load_first(r->norm.weight + i, size - i));
            mean_d = add(mean_d, d);
            mean_product = mul_add(d, off, mean_product);
        }
        mean_d = broadcast(sum_of(mean_d) / size);
        mean_product = broadcast(sum_of(mean_product) / size);
    }
    uint32_t key = r->dropout.least ? key_of_row(&r->dropout, row) : 0;
    for (int64_t i = 0; i < size; i += LANES) {
        vec d = zeros();
        if (r->norm.weight) {
            vec off = standardized(type, r, inverse, row, i);
            d = mul(load_some(type, dnormed, i, size), load_first(r->norm.weight + i, size - i));
            d = mul(sub_mul(off, mean_product, sub(d, mean_d)), broadcast(m[1]));
        }
        if (r->dsum)
            d = add(d, load_some(type, row_of(type, r->dsum, row * size), i, size));
        if (r->dx)
            store_some(type, (void *)row_of(type, r->dx, row * size), i, size, d);
        if (r->dy)
            store_some(type, (void *)row_of(type, r->dy, row * size), i, size,
                       drop(&r->dropout, key, i, d));
    }
}

INLINE void residuals_in(const int type, const int is_backward, const Residual *r, int64_t begin,
                         int64_t end)
{
    float *inverse = NULL;
    if (is_backward && r->norm.weight && !r->sum) {
        inverse = allocate(r->size); /* of the weights */
        for (int64_t i = 0; i < r->size; i++)
            inverse[i] = 1 / r->norm.weight[i];
    }
    for (int64_t block = begin; block < end; block++) {
        int64_t row = block * ROWS_OF_A_SUM, last = row + ROWS_OF_A_SUM;
        float *dweight = r->dweight + block * r->size, *dbias = r->dbias + block * r->size;
        if (is_backward && r->norm.weight) {
            memset(dweight, 0, r->size * sizeof *dweight);
            memset(dbias, 0, r->size * sizeof *dbias);
        }
        for (; row < last && row < r->rows; row++)
            if (is_backward)
                residual_backward_in(type, r, inverse, row, dweight, dbias);
            else
                residual_forward_in(type, r, row);
    }
    free(inverse);
}

/* ---- activation with dropout ---- */

INLINE vec activated(const int activation, vec x)
{
    if (activation == GELU)
        return apply_gelu(x);
    if (activation == SILU)
        return apply_silu(x);
    return max(x, mul(x, zeros())); /* NaN stays NaN */
}

/* `rest` for negative x, 1 - rest for positive ones; both are 1/2 at 0. */
INLINE vec from_tail(vec x, vec rest)
{
    vec is_positive = min(max(mul(x, broadcast(1e30f)), zeros()), broadcast(1));
    return mul_add(is_positive, sub(broadcast(1), add(rest, rest)), rest);
}

/* The derivative times d: of x F(x) it is F(x) + x F'(x). */
INLINE vec activation_gradient(const int activation, vec x, vec d)
{
    if (activation == GELU) {
        vec half_square = min(mul(mul(x, x), broadcast(.5f)), broadcast(87));
        vec density = mul(exponential(sub(zeros(), half_square)), broadcast(0.398942280f));
        return mul(d, mul_add(x, density, from_tail(x, tail_of_normal(x))));
    }
    vec rest = tail_of_sigmoid(x), slope = mul(rest, sub(broadcast(1), rest));
    return mul(d, mul_add(x, slope, from_tail(x, rest)));
}

INLINE void activations_in(const int type, const int activation, const int is_backward,
                           const Activation *a, int64_t begin, int64_t end)
{
    for (int64_t row = begin; row < end; row++) {
        uint32_t key = a->dropout.least ? key_of_row(&a->dropout, row) : 0;
        const void *x = row_of(type, a->x, row * a->size), *y = row_of(type, a->y, row * a->size);
        const void *dy = row_of(type, a->dy, row * a->size);
        void *result = (void *)(is_backward ? row_of(type, a->dx, row * a->size) : y);
        for (int64_t i = 0; i < a->size; i += LANES) {
            vec z;
            if (!is_backward) {
                z = drop(&a->dropout, key, i, activated(activation, load_some(type, x, i, a->size)));
            } else if (activation == RELU) { /* what was dropped is 0, too */
                vec is_positive = mul(load_some(type, y, i, a->size), broadcast(INFINITY));
                is_positive = min(max(is_positive, zeros()), broadcast(1));
                z = mul(load_some(type, dy, i, a->size), is_positive);
                z = a->dropout.least ? mul(z, broadcast(a->dropout.scale)) : z;
            } else {
                vec d = drop(&a->dropout, key, i, load_some(type, dy, i, a->size));
                z = activation_gradient(activation, load_some(type, x, i, a->size), d);
            }
            store_some(type, result, i, a->size, z);
        }
    }
}

/* ---- softmax of logits ---- */

INLINE void to_probabilities_in(const int type, const Softmax *s, int64_t first, int64_t last)
{
    int64_t size = s->size, width = whole_vectors(size);
    float *powers = allocate(width);
    for (int64_t r = first; r < last; r++) {
        void *row = (void *)row_of(type, s->logits, r * size);
        vec top = broadcast(-INFINITY), total = zeros();
        for (int64_t i = 0; i < size; i += LANES)
            top = max(top, fill(load_some(type, row, i, size), size - i, -INFINITY));
        top = broadcast(greatest_of(top));
        for (int64_t i = 0; i < size; i += LANES) {
            vec off = sub(load_some(type, row, i, size), top);
            vec power = mul_add(off, zeros(), exponential(max(off, broadcast(-87))));
            power = fill(power, size - i, 0);
            store(powers + i, power);
            total = add(total, power);
        }
        float sum = sum_of(total), label;
        store_first(&label, 1, load_some(type, row, s->labels[r], s->labels[r] + 1));
        float tops[LANES];
        store(tops, top);
        s->label_logits[r] = label;
        s->label_log_probs[r] = label - tops[0] - logf(sum);
        vec share = broadcast(1 / sum);
        for (int64_t i = 0; i < size; i += LANES)
            store_some(type, row, i, size, mul(load(powers + i), share));
    }
    free(powers);
}

/* ---- entries of the table ---- */

INLINE void activations(const int is_backward, const Activation *a, int64_t first, int64_t last)
{
    switch (a->type == BF16 ? -a->activation : a->activation) {
    case RELU: activations_in(FP32, RELU, is_backward, a, first, last); break;
    case GELU: activations_in(FP32, GELU, is_backward, a, first, last); break;
    case SILU: activations_in(FP32, SILU, is_backward, a, first, last); break;
    case -RELU: activations_in(BF16, RELU, is_backward, a, first, last); break;
    case -GELU: activations_in(BF16, GELU, is_backward, a, first, last); break;
    case -SILU: activations_in(BF16, SILU, is_backward, a, first, last); break;
    }
}
static void activation_forward(const Activation *a, int64_t first, int64_t last)
{
    activations(0, a, first, last);
}
static void activation_backward(const Activation *a, int64_t first, int64_t last)
{
    activations(1, a, first, last);
}
static void probabilities(const Softmax *s, int64_t first, int64_t last)
{
    if (s->type == BF16)
        to_probabilities_in(BF16, s, first, last);
    else
        to_probabilities_in(FP32, s, first, last);
}
#define IN_BOTH_TYPES(function, is_backward, what, first, last) \
    do { \
        if (what->type == BF16) \
            function(BF16, is_backward, what, first, last); \
        else \
            function(FP32, is_backward, what, first, last); \
    } while (0)
static void residual_forward(const Residual *r, int64_t first, int64_t last)
{
    IN_BOTH_TYPES(residuals_in, 0, r, first, last);
}
static void residual_backward(const Residual *r, int64_t first, int64_t last)
{
    IN_BOTH_TYPES(residuals_in, 1, r, first, last);
}
static void attend_forward(const RowAttention *a, int64_t first, int64_t last)
{
    IN_BOTH_TYPES(attend_in, 0, a, first, last);
}
static void attend_backward(const RowAttention *a, int64_t first, int64_t last)
{
    IN_BOTH_TYPES(attend_in, 1, a, first, last);
}

#define TRAINING \
    attend_forward, attend_backward, residual_forward, residual_backward, activation_forward, \
        activation_backward, probabilities
