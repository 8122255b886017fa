/* The inner loops of a lookup; `genius.search.cells` has the same in NumPy, which says what each step means.

All choices of candidates are made with whole numbers, so they agree with NumPy in every bit. Scores of ranked
items are float32, summed in 16 lanes in the same order on every processor; NumPy's differ in the last bits.
*/
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define VERSION 1
#define LANES 16
#define BUCKETS 2048    /* of scores, to find a bound that enough children reach */
#define AHEAD 6        /* cells whose records are loaded in advance */
#define WORST INT64_MIN
enum { UNKNOWN_LENGTHS = -1, NO_MEMORY = -2, NO_VECTOR = -3 };

#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__) && defined(__linux__)
#define FAST __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#define VNNI __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,prefer-vector-width=512")))
#else
#define FAST
#endif
#define INLINE static inline __attribute__((always_inline))

typedef struct {
    int64_t items;
    int32_t levels, depth;           /* codes of an item; codes that name a cell */
    int32_t width, code_at, row_at, row_bytes; /* of a record: bytes, code of level `depth`, row */
    int32_t dim, codes;              /* of the codebooks: width, codes of all levels */
    const int32_t *sizes;            /* (levels,) */
    const uint8_t *records;          /* (items, width) */
    const int32_t *start;            /* (cells + 1,) first position of each cell */
    const int32_t *filled, *filled_start; /* cells with items; their first positions, and `items` */
    int64_t filled_cells;
    uint16_t *inverse;               /* (items,) inverse length of each item, 0 where not known yet */
    const uint16_t *const *prefix_inverse; /* (depth,) of all prefixes of 1, 2, ... codes; 0: no items */
    const int8_t *small;             /* (codes, dim) code vectors in whole numbers */
    const int32_t *small_sums;       /* (codes,) their sums */
    const float *factor;             /* (codes,) what makes their products multiples of one unit */
    const float *vectors;            /* (codes, dim) code vectors */
} Pool;

typedef struct {
    int64_t beam, parents;           /* cells kept, and prefixes at each level above */
    int64_t leaves, limit;           /* items scored, candidates kept */
    int64_t room;                    /* of the array for positions that are found; at least `limit` */
    const uint8_t *modalities;       /* (sizes[0],) which codes of level 0 are searched, or NULL */
    const uint8_t *mask;             /* (items,) which items are searched, or NULL */
    const int32_t *count_before;     /* (items + 1,) how many of them are before each position */
    const int32_t *listed;           /* the positions of all of them, where they are few, or NULL */
    const float *z;                  /* (dim of the codebooks,) the query */
    const float *phi;                /* (dim,) its vector, to compare with */
    const uint16_t *vectors;         /* (rows, dim) float16, or NULL */
    int64_t rows, dim, k;            /* of vectors; items to return */
} Request;

typedef struct {
    int64_t beams, leaves, unknown;  /* prefixes it ended with, items under them, items without a length */
} Seen;

int32_t genius_kernel_version(void) { return VERSION; }

/* ---- numbers that sort by score, then by lower index ---- */

INLINE int64_t key_of(int64_t score, int64_t index) { return score * ((int64_t)1 << 32) + (0xFFFFFFFFLL - index); }
INLINE int64_t index_of(int64_t key) { return 0xFFFFFFFFLL - (key & 0xFFFFFFFFLL); }
INLINE int64_t score_of(int64_t key) { return key >> 32; }

/* Puts the `k` largest first; returns the least of them. No two keys are equal. The loop has no branch that
   depends on the keys: a processor would guess every second one wrong. */
static int64_t select_largest(int64_t *keys, int64_t n, int64_t k) {
    int64_t low = 0, high = n;
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2, a = keys[low], b = keys[middle], c = keys[high - 1];
        int64_t at = a > b ? (b > c ? middle : (a > c ? high - 1 : low)) : (a > c ? low : (b > c ? high - 1 : middle));
        int64_t pivot = keys[at], end = low + 1; /* keys above the pivot are in low + 1 ... end - 1 */
        keys[at] = keys[low];
        for (int64_t i = end; i < high; i++) {
            int64_t key = keys[i];
            keys[i] = keys[end];
            keys[end] = key;
            end += key > pivot;
        }
        keys[low] = keys[end - 1];
        keys[end - 1] = pivot;
        if (end == k) break;
        if (end > k) high = end - 1;
        else low = end;
    }
    return keys[k - 1];
}

static int descending(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x < y) - (x > y);
}

/* The best keys seen so far, in no order; twice as many are kept before the worse half is dropped. */
typedef struct {
    int64_t *keys, count, limit, room, worst; /* a key must be above `worst` to get in */
    int64_t worst_score;
} Best;

INLINE void best_init(Best *best, int64_t *keys, int64_t limit, int64_t room) {
    *best = (Best){keys, 0, limit, room, WORST, INT64_MIN};
}

static void best_shrink(Best *best) {
    if (best->count > best->limit) {
        best->worst = select_largest(best->keys, best->count, best->limit);
        best->worst_score = score_of(best->worst);
        best->count = best->limit;
    }
}

INLINE void best_add(Best *best, int64_t key) {
    if (key > best->worst) {
        best->keys[best->count++] = key;
        if (best->count == best->room) best_shrink(best);
    }
}

/* ---- memory of one thread, kept for its next search ---- */

static _Thread_local void *memory;
static _Thread_local size_t memory_bytes;

static void *claim(size_t bytes) {
    if (bytes > memory_bytes) {
        void *larger = realloc(memory, bytes);
        if (!larger) return NULL;
        memory = larger, memory_bytes = bytes;
    }
    return memory;
}

/* ---- tables: the product of a query with every code vector, in units ---- */

FAST static void products8(const int8_t *books, const int16_t *query, int64_t codes, int64_t dim, int32_t *out) {
    for (int64_t code = 0; code < codes; code++) {
        const int8_t *book = books + code * dim;
        int32_t sum = 0;
        for (int64_t d = 0; d < dim; d++) sum += (int32_t)(int16_t)book[d] * query[d];
        out[code] = sum;
    }
}

#ifdef VNNI
/* The same where there are instructions for products of bytes, of which one is unsigned: the query's, + 128. */
VNNI static void products_of_bytes(const int8_t *books, const int32_t *book_sums, const uint8_t *query,
                                   int64_t codes, int64_t dim, int32_t *out) {
    for (int64_t code = 0; code < codes; code++) {
        const int8_t *book = books + code * dim;
        int32_t sum = 0;
        for (int64_t d = 0; d < dim; d++) sum += (int32_t)book[d] * (int32_t)query[d];
        out[code] = sum - 128 * book_sums[code];
    }
}
#endif

FAST static void to_units(const float *factor, float length, int64_t codes, int32_t *out) {
    for (int64_t code = 0; code < codes; code++)
        out[code] = (int32_t)rintf((float)out[code] * factor[code] / length);
}

static void tables_of(const Pool *pool, const float *z, int16_t *query, int32_t *out) {
    int64_t dim = pool->dim, square = 0;
    float most = 0;
    for (int64_t d = 0; d < dim; d++) most = fabsf(z[d]) > most ? fabsf(z[d]) : most;
    float scale = most > 0 ? 127.0f / most : 0.0f;
    for (int64_t d = 0; d < dim; d++) {
        query[d] = (int16_t)rintf(z[d] * scale);
        square += (int32_t)query[d] * query[d];
    }
#ifdef VNNI
    if (__builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512vl")) {
        uint8_t *bytes = (uint8_t *)(query + dim);
        for (int64_t d = 0; d < dim; d++) bytes[d] = (uint8_t)(query[d] + 128);
        products_of_bytes(pool->small, pool->small_sums, bytes, pool->codes, dim, out);
    } else
#endif
        products8(pool->small, query, pool->codes, dim, out);
    to_units(pool->factor, square ? (float)sqrt((double)square) : 1.0f, pool->codes, out);
}

/* ---- the beam ---- */

INLINE int64_t count_items(const Request *request, int64_t from, int64_t to) {
    return request->mask ? request->count_before[to] - request->count_before[from] : to - from;
}

/* The best score of each group of children of one prefix: (sum + table[code]) * inverse[code].
   Codes that are LANES apart are a group. */
FAST static void best_of_groups(int32_t sum, const int32_t *table, const uint16_t *inverse, int64_t size,
                                int32_t *best) {
    int32_t most[LANES];
    int64_t whole = size / LANES * LANES;
    for (int i = 0; i < LANES; i++) most[i] = INT32_MIN;
    for (int64_t code = 0; code < whole; code += LANES)
        for (int i = 0; i < LANES; i++) {
            int32_t score = (sum + table[code + i]) * (int32_t)inverse[code + i];
            most[i] = score > most[i] ? score : most[i];
        }
    for (int64_t code = whole; code < size; code++) {
        int32_t score = (sum + table[code]) * (int32_t)inverse[code];
        most[code - whole] = score > most[code - whole] ? score : most[code - whole];
    }
    memcpy(best, most, sizeof most);
}

/* Lists groups by falling best score (in BUCKETS steps), as many as it takes for `want` of them, or all that have
   a positive score; returns how many. The others are below the last one's bucket. */
static int64_t list_groups(const int32_t *best, int64_t n, int64_t want, int32_t *listed) {
    int32_t most = 0, shift = 0, count[BUCKETS] = {0};
    for (int64_t i = 0; i < n; i++) most = best[i] > most ? best[i] : most;
    while ((most >> shift) >= BUCKETS) shift++;
    for (int64_t i = 0; i < n; i++)
        if (best[i] > 0) count[best[i] >> shift]++;
    int32_t least = most >> shift, before = 0;
    for (;; least--) {
        int32_t own = count[least];
        count[least] = before;
        before += own;
        if (before >= want || !least) break;
    }
    for (int64_t i = 0; i < n; i++)
        if (best[i] > 0 && best[i] >> shift >= least) listed[count[best[i] >> shift]++] = (int32_t)i;
    return before;
}

/* Adds the children of one group that have items. */
INLINE void add_group(const Pool *pool, const Request *request, const int32_t *table, int64_t level, int64_t stride,
                      int64_t parent, int32_t sum, int64_t lane, Best *best) {
    int64_t size = pool->sizes[level], first = parent * size;
    const uint16_t *inverse = pool->prefix_inverse[level] + first;
    for (int64_t code = lane; code < size; code += LANES) {
        int32_t score = (sum + table[code]) * (int32_t)inverse[code];
        if (score < best->worst_score || !inverse[code]) continue;
        int64_t child = first + code;
        if (request->mask && !count_items(request, pool->start[child * stride], pool->start[(child + 1) * stride]))
            continue;
        best_add(best, key_of(score, child));
    }
}

/* The best children of the `parents`, which have `level` codes and these sums. */
static __attribute__((noinline)) void expand(const Pool *pool, const Request *request, const int32_t *table, int64_t level, int64_t stride,
                   const int64_t *parents, const int64_t *sums, int64_t count, int32_t *groups, Best *best) {
    int64_t size = pool->sizes[level], all = count * LANES;
    int32_t *listed = groups + all;
    for (int64_t p = 0; p < count; p++)
        best_of_groups((int32_t)sums[p], table, pool->prefix_inverse[level] + index_of(parents[p]) * size, size,
                       groups + p * LANES);
    int64_t some = list_groups(groups, all, best->limit, listed);
    for (int64_t i = 0; i < some; i++) {
        int64_t group = listed[i], p = group / LANES;
        if (groups[group] >= best->worst_score)
            add_group(pool, request, table, level, stride, index_of(parents[p]), (int32_t)sums[p], group % LANES, best);
        groups[group] = INT32_MIN;
    }
    best_shrink(best);
    if (best->count >= best->limit && !request->mask) return; /* no other group reaches these */
    for (int64_t group = 0; group < all; group++) {
        int64_t p = group / LANES;
        if (groups[group] != INT32_MIN && groups[group] >= best->worst_score)
            add_group(pool, request, table, level, stride, index_of(parents[p]), (int32_t)sums[p], group % LANES, best);
    }
    best_shrink(best);
}

/* Sum of the table entries of a prefix of `codes` codes. */
INLINE int64_t sum_of(const Pool *pool, const int32_t *const *tables, int64_t prefix, int64_t codes) {
    uint32_t rest = (uint32_t)prefix; /* 32 bits are divided faster */
    int64_t sum = 0;
    for (int64_t level = codes - 1; level >= 0; level--) {
        uint32_t size = (uint32_t)pool->sizes[level];
        sum += tables[level][rest % size];
        rest /= size;
    }
    return sum;
}

/* ---- items ---- */

typedef struct {
    const Pool *pool;
    const Request *request;
    const int32_t *const *tables;    /* one for each level */
    int64_t *unknown;                /* positions without a length */
    Seen *seen;
} Scan;

INLINE void scan_item(const Scan *scan, int64_t position, int64_t sum, int64_t rest, Best *best) {
    const Pool *pool = scan->pool;
    const uint8_t *code = pool->records + position * pool->width + pool->code_at;
    const int32_t *const *tables = scan->tables + pool->depth;
    int32_t total = (int32_t)sum;
    for (int64_t level = 0; level < rest; level++) total += tables[level][code[level]];
    uint16_t inverse = pool->inverse[position];
    if (!inverse && scan->seen->unknown < scan->request->room) scan->unknown[scan->seen->unknown++] = position;
    int64_t score = (int64_t)(total * (int32_t)inverse);
    if (score >= best->worst_score) best_add(best, key_of(score, position));
}

INLINE void scan_cell(const Scan *scan, int64_t start, int64_t end, int64_t sum, int64_t rest, Best *best) {
    const Request *request = scan->request;
    if (!request->mask) {
        for (int64_t position = start; position < end; position++) scan_item(scan, position, sum, rest, best);
    } else if (request->listed) {
        int64_t last = request->count_before[end];
        for (int64_t i = request->count_before[start]; i < last; i++)
            scan_item(scan, request->listed[i], sum, rest, best);
    } else {
        for (int64_t position = start; position < end; position++)
            if (request->mask[position]) scan_item(scan, position, sum, rest, best);
    }
}

/* The common numbers of levels are constants, so that the loop over them has no branch. */
static void scan_range(const Scan *scan, int64_t start, int64_t end, int64_t sum, Best *best) {
    int64_t rest = scan->pool->levels - scan->pool->depth;
    switch (rest) {
    case 6: scan_cell(scan, start, end, sum, 6, best); break;
    case 12: scan_cell(scan, start, end, sum, 12, best); break;
    default: scan_cell(scan, start, end, sum, rest, best);
    }
}

INLINE int64_t lower_bound(const int32_t *values, int64_t n, int64_t value) {
    int64_t low = 0;
    while (n > 0) {
        int64_t half = n / 2;
        if (values[low + half] < value) low += half + 1, n -= half + 1;
        else n = half;
    }
    return low;
}

/* All items under the kept prefixes of `codes` codes. */
static void scan_prefixes(const Scan *scan, const int64_t *kept, const int64_t *sums, int64_t count,
                          int64_t codes, int64_t stride, Best *best) {
    const Pool *pool = scan->pool;
    for (int64_t p = 0; p < count; p++) {
        int64_t prefix = index_of(kept[p]);
        if (codes == pool->depth) {
            if (p + AHEAD < count) {
                int64_t next = pool->start[index_of(kept[p + AHEAD])];
                __builtin_prefetch(pool->records + next * pool->width);
                __builtin_prefetch(pool->records + next * pool->width + 64);
                __builtin_prefetch(pool->inverse + next);
            }
            scan_range(scan, pool->start[prefix], pool->start[prefix + 1], sums[p], best);
            continue;
        }
        int64_t first = lower_bound(pool->filled, pool->filled_cells, prefix * stride);
        for (int64_t f = first; f < pool->filled_cells && pool->filled[f] < (prefix + 1) * stride; f++) {
            int64_t start = pool->filled_start[f], end = pool->filled_start[f + 1];
            scan_range(scan, start, end, sum_of(pool, scan->tables, pool->filled[f], pool->depth), best);
        }
    }
}

/* Positions of the `limit` best items for a query into `found`, in no order; returns how many.
   Where lengths of items are missing, it returns UNKNOWN_LENGTHS, and `found` has the positions of these. */
int64_t genius_candidates(const Pool *pool, const Request *request, int64_t *found, Seen *seen) {
    int64_t levels = pool->levels, depth = pool->depth;
    int64_t widest = request->beam > request->parents ? request->beam : request->parents;
    int64_t most = widest > request->limit ? widest : request->limit;
    int64_t room = 2 * most + 256, groups_room = 2 * LANES * widest;
    char *at = claim(sizeof(int64_t) * 3 * room + sizeof(void *) * levels
                     + sizeof(int32_t) * (groups_room + pool->codes) + (sizeof(int16_t) + 1) * pool->dim);
    if (!at) return NO_MEMORY;
    int64_t *keys = (int64_t *)at, *kept = keys + room, *sums = kept + room;
    const int32_t **tables = (const int32_t **)(sums + room);
    int32_t *all = (int32_t *)(tables + levels), *groups = all + pool->codes;
    tables_of(pool, request->z, (int16_t *)(groups + groups_room), all);
    for (int64_t level = 0, first = 0; level < levels; first += pool->sizes[level++]) tables[level] = all + first;

    int64_t stride = 1, count = 0, total = 0, codes = 0;
    for (int64_t level = 0; level < depth; level++) stride *= pool->sizes[level];
    Best best;
    do {
        stride /= pool->sizes[codes];
        int64_t kept_here = codes < depth - 1 ? request->parents : request->beam;
        best_init(&best, keys, kept_here, kept_here + kept_here / 4 + 64);
        if (codes) {
            expand(pool, request, tables[codes], codes, stride, kept, sums, count, groups, &best);
        } else {
            for (int64_t code = 0; code < pool->sizes[0]; code++) {
                if (request->modalities && !request->modalities[code]) continue;
                if (!count_items(request, pool->start[code * stride], pool->start[(code + 1) * stride])) continue;
                best_add(&best, key_of((int64_t)tables[0][code] * pool->prefix_inverse[0][code], code));
            }
            best_shrink(&best);
        }
        count = best.count, total = 0, codes++;
        memcpy(kept, keys, sizeof(int64_t) * count);
        for (int64_t i = 0; i < count; i++) {
            int64_t prefix = index_of(kept[i]);
            sums[i] = sum_of(pool, tables, prefix, codes);
            total += count_items(request, pool->start[prefix * stride], pool->start[(prefix + 1) * stride]);
        }
    } while (codes < depth && total > request->leaves);
    if (total > request->leaves) { /* the best cells, as many as it takes */
        qsort(kept, count, sizeof(int64_t), descending);
        int64_t taken = 0, n = 0;
        while (n < count && taken < request->leaves) {
            int64_t cell = index_of(kept[n]);
            taken += count_items(request, pool->start[cell], pool->start[cell + 1]);
            sums[n++] = sum_of(pool, tables, cell, depth);
        }
        count = n, total = taken;
    }
    *seen = (Seen){count, total, 0};
    Scan scan = {pool, request, tables, found, seen};
    best_init(&best, keys, request->limit, 2 * request->limit + 128);
    scan_prefixes(&scan, kept, sums, count, codes, stride, &best);
    if (seen->unknown) return UNKNOWN_LENGTHS;
    best_shrink(&best);
    for (int64_t i = 0; i < best.count; i++) found[i] = index_of(best.keys[i]);
    return best.count;
}

/* ---- ranking ---- */

typedef struct {
    int64_t k, count;
    int64_t *positions;
    float *scores;
} Ranked;

/* Keeps the k best, best first; of equal scores the lower position wins. */
static void rank_item(Ranked *ranked, float score, int64_t position) {
    int64_t at = ranked->count;
    while (at > 0 && (score > ranked->scores[at - 1]
                      || (score == ranked->scores[at - 1] && position < ranked->positions[at - 1]))) at--;
    if (at >= ranked->k) return;
    if (ranked->count < ranked->k) ranked->count++;
    int64_t moved = ranked->count - 1 - at;
    memmove(ranked->scores + at + 1, ranked->scores + at, sizeof(float) * moved);
    memmove(ranked->positions + at + 1, ranked->positions + at, sizeof(int64_t) * moved);
    ranked->scores[at] = score, ranked->positions[at] = position;
}

INLINE int64_t row_of(const Pool *pool, int64_t position) {
    const uint8_t *bytes = pool->records + position * pool->width + pool->row_at;
    int64_t row = 0;
    for (int32_t byte = 0; byte < pool->row_bytes; byte++) row |= (int64_t)bytes[byte] << (8 * byte);
    return row;
}

INLINE float sum_lanes(const float *lanes) {
    float half[8], quarter[4];
    for (int i = 0; i < 8; i++) half[i] = lanes[i] + lanes[i + 8];
    for (int i = 0; i < 4; i++) quarter[i] = half[i] + half[i + 4];
    return (quarter[0] + quarter[2]) + (quarter[1] + quarter[3]);
}

/* <vector, phi> of a float16 vector; as `genius.search.rank:products`, `phi` is times 2^112. */
FAST static float product16(const uint16_t *vector, const float *phi, int64_t dim) {
    float lanes[LANES] = {0};
    int64_t whole = dim / LANES * LANES;
    for (int64_t d = 0; d < whole; d += LANES)
        for (int i = 0; i < LANES; i++) {
            uint32_t bits = ((uint32_t)(int32_t)(int16_t)vector[d + i] << 13) & 0x8FFFFFFFu;
            float value;
            memcpy(&value, &bits, sizeof value);
            lanes[i] += value * phi[d + i];
        }
    for (int64_t d = whole; d < dim; d++) {
        uint32_t bits = ((uint32_t)(int32_t)(int16_t)vector[d] << 13) & 0x8FFFFFFFu;
        float value;
        memcpy(&value, &bits, sizeof value);
        lanes[d - whole] += value * phi[d];
    }
    return sum_lanes(lanes);
}

/* <sum, z> and |sum|^2 of a sum of code vectors. */
FAST static void compare_sum(const float *const *code_vectors, int64_t levels, const float *z, int64_t dim,
                             float *product, float *square) {
    float products[LANES] = {0}, squares[LANES] = {0};
    for (int64_t d = 0; d < dim; d += LANES) {
        int64_t width = dim - d < LANES ? dim - d : LANES;
        float sum[LANES] = {0};
        if (width == LANES)
            for (int64_t level = 0; level < levels; level++)
                for (int i = 0; i < LANES; i++) sum[i] += code_vectors[level][d + i];
        else
            for (int64_t level = 0; level < levels; level++)
                for (int64_t i = 0; i < width; i++) sum[i] += code_vectors[level][d + i];
        for (int64_t i = 0; i < width; i++) {
            products[i] += sum[i] * z[d + i];
            squares[i] += sum[i] * sum[i];
        }
    }
    *product = sum_lanes(products), *square = sum_lanes(squares);
}

/* All codes of the item at a position. */
static void codes_of(const Pool *pool, int64_t position, uint16_t *codes) {
    int64_t after = lower_bound(pool->filled_start, pool->filled_cells, position + 1);
    uint32_t cell = (uint32_t)pool->filled[after - 1];
    for (int64_t level = pool->depth - 1; level >= 0; level--) {
        codes[level] = (uint16_t)(cell % (uint32_t)pool->sizes[level]);
        cell /= (uint32_t)pool->sizes[level];
    }
    const uint8_t *rest = pool->records + position * pool->width + pool->code_at;
    for (int64_t level = pool->depth; level < pool->levels; level++) codes[level] = rest[level - pool->depth];
}

/* Scores candidates by the products of their float16 vectors with `phi`. */
static int rank_by_vectors(const Pool *pool, const Request *request, const int64_t *positions, int64_t n,
                           Ranked *ranked) {
    int64_t dim = request->dim;
    float *phi = claim(sizeof(float) * dim);
    if (!phi) return NO_MEMORY;
    for (int64_t d = 0; d < dim; d++) phi[d] = request->phi[d] * 0x1p112f;
    for (int64_t i = 0; i < n; i++) {
        int64_t row = row_of(pool, positions[i]), next = row_of(pool, positions[i + AHEAD < n ? i + AHEAD : i]);
        if (row >= request->rows || next >= request->rows) return NO_VECTOR;
        for (int64_t d = 0; d < dim; d += 32) __builtin_prefetch(request->vectors + next * dim + d);
        rank_item(ranked, product16(request->vectors + row * dim, phi, dim), positions[i]);
    }
    return 0;
}

/* Scores candidates by the cosine of the sum of their code vectors with the query, which has unit length. */
static int rank_by_codes(const Pool *pool, const Request *request, const int64_t *positions, int64_t n,
                         Ranked *ranked) {
    const float **vectors = claim((sizeof(float *) + sizeof(uint16_t)) * pool->levels);
    if (!vectors) return NO_MEMORY;
    uint16_t *codes = (uint16_t *)(vectors + pool->levels);
    for (int64_t i = 0; i < n; i++) {
        codes_of(pool, positions[i], codes);
        for (int64_t level = 0, first = 0; level < pool->levels; first += pool->sizes[level++])
            vectors[level] = pool->vectors + (first + codes[level]) * pool->dim;
        float product, square;
        compare_sum(vectors, pool->levels, request->z, pool->dim, &product, &square);
        float length = sqrtf(square);
        rank_item(ranked, product / (length > 1e-6f ? length : 1e-6f), positions[i]);
    }
    return 0;
}

/* The k best candidates by vectors, where the request has some, else by codes; best first. Returns how many.
   `found` has room for the positions of candidates and k more, then follow rows, scores and codes of k items. */
int64_t genius_search(const Pool *pool, const Request *request, int64_t *found, Seen *seen) {
    int64_t n = genius_candidates(pool, request, found, seen);
    if (n < 0) return n;
    int64_t k = request->k, *rows = found + request->limit + k;
    float *scores = (float *)(rows + k);
    uint16_t *codes = (uint16_t *)(scores + k);
    Ranked ranked = {k, 0, found + request->limit, scores};
    int failed = (request->vectors ? rank_by_vectors : rank_by_codes)(pool, request, found, n, &ranked);
    if (failed) return failed;
    for (int64_t i = 0; i < ranked.count; i++) {
        rows[i] = row_of(pool, ranked.positions[i]);
        codes_of(pool, ranked.positions[i], codes + i * pool->levels);
    }
    return ranked.count;
}
