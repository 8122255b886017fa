/* The inner loops of a lookup; `genius.search.cells` has the same in NumPy, which says what each step means.

All choices of candidates are made with whole numbers, so they agree with NumPy in every bit. Scores of ranked
items are float32, summed in 16 lanes in the same order on every processor; NumPy's differ in the last bits.
*/
#include "kernel.h"

#define VERSION 7
#define WORST INT64_MIN
#define NONE INT32_MIN  /* the score of a child without items */
#define PREFETCHED 512  /* bytes of a cell, and lengths, that are loaded in advance */

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

INLINE void best_init(Best *best, int64_t *keys, int64_t limit, int64_t room, int64_t worst) {
    *best = (Best){keys, 0, limit, room, worst, score_of(worst)};
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

void *claim(size_t bytes) {
    if (bytes > memory_bytes) {
        void *larger = realloc(memory, bytes);
        if (!larger) return NULL;
        memory = larger, memory_bytes = bytes;
    }
    return memory;
}

/* ---- the beam ---- */

INLINE int64_t count_items(const Request *request, int64_t from, int64_t to) {
    return request->mask ? request->count_before[to] - request->count_before[from] : to - from;
}

/* The children of all prefixes of one level. */
typedef struct {
    const Pool *pool;
    const Request *request;
    int64_t level, stride;           /* codes of the parents; cells under each child */
    const int64_t *parents;          /* keys */
    int64_t count, row;              /* parents; children of each, filled up to a multiple of LANES */
    int32_t *scores, *most;          /* (count, row), NONE where there is no child; of each LANES of them the best */
} Children;

/* Scores of the children of one prefix, (sum + table[code]) * inverse[code], and the best of each LANES of them. */
FAST static void score_children(int32_t sum, const int32_t *restrict table, const uint16_t *restrict inverse,
                                int64_t size, int64_t row, int32_t *restrict scores, int32_t *restrict most) {
    for (int64_t i = 0; i < size; i++) {
        int32_t score = (sum + table[i]) * (int32_t)inverse[i];
        scores[i] = inverse[i] ? score : NONE;
    }
    for (int64_t i = size; i < row; i++) scores[i] = NONE;
    for (int64_t group = 0; group < row / LANES; group++) {
        int32_t best = NONE;
        for (int i = 0; i < LANES; i++) best = scores[LANES * group + i] > best ? scores[LANES * group + i] : best;
        most[group] = best;
    }
}

/* Adds the children that are good enough and have items to search. */
static void add_children(const Children *children, Best *best) {
    const Pool *pool = children->pool;
    const Request *request = children->request;
    int64_t size = pool->sizes[children->level], stride = children->stride, groups = children->row / LANES;
    for (int64_t p = 0; p < children->count; p++)
        for (int64_t group = p * groups; group < (p + 1) * groups; group++) {
            if (children->most[group] < best->worst_score) continue;
            for (int64_t place = group * LANES; place < (group + 1) * LANES; place++) {
                int32_t score = children->scores[place];
                if (score < best->worst_score || score == NONE) continue;
                int64_t code = place - p * children->row, child = index_of(children->parents[p]) * size + code;
                if (request->mask || !children->level) {
                    if (!count_items(request, pool->start[child * stride], pool->start[(child + 1) * stride])) continue;
                    if (!children->level && request->modalities && !request->modalities[code]) continue;
                }
                best_add(best, key_of(score, child));
            }
        }
    best_shrink(best);
}

/* Sum of the table entries of a prefix of `codes` codes. */
INLINE int32_t sum_of(const Pool *pool, const int32_t *const *tables, int64_t prefix, int64_t codes) {
    uint32_t rest = (uint32_t)prefix;
    int32_t sum = 0;
    for (int64_t level = codes - 1; level >= 0; level--) {
        uint32_t size = (uint32_t)pool->sizes[level];
        uint32_t code = size == 256 ? rest & 255 : rest % size; /* a division takes long */
        sum += tables[level][code];
        rest = size == 256 ? rest >> 8 : rest / size;
    }
    return sum;
}

/* ---- items ---- */

/* Items of one cell, and the sum of the table entries of its codes. */
typedef struct {
    int32_t start, end, sum, cell;
} Range;

typedef struct {
    const Pool *pool;
    const Request *request;
    const int32_t *tables;           /* of the levels below the cells, TABLE entries each */
    int32_t later;                   /* the most that the second half of these levels can add */
    Seen *seen;
} Scan;

INLINE void scan_item(const Scan *scan, int64_t position, const Range *range, int64_t rest, Best *best) {
    const Pool *pool = scan->pool;
    const uint8_t *code = pool->records + position * pool->width + pool->code_at;
    int64_t inverse = pool->inverse[position], half = rest / 2;
    int32_t sum = range->sum;
    if (__builtin_expect(!inverse, 0)) inverse = learn_inverse(pool, position, range->cell);
    for (int64_t level = 0; level < half; level++) sum += scan->tables[TABLE * level + code[level]];
    if ((sum + scan->later) * inverse < best->worst_score) return;
    for (int64_t level = half; level < rest; level++) sum += scan->tables[TABLE * level + code[level]];
    int64_t score = sum * inverse;
    if (score >= best->worst_score) best_add(best, key_of(score, position));
}

INLINE void scan_range(const Scan *scan, const Range *range, int64_t rest, Best *best) {
    const Request *request = scan->request;
    if (!request->mask) {
        for (int64_t position = range->start; position < range->end; position++)
            scan_item(scan, position, range, rest, best);
    } else if (request->listed) {
        int64_t last = request->count_before[range->end];
        for (int64_t i = request->count_before[range->start]; i < last; i++)
            scan_item(scan, request->listed[i], range, rest, best);
    } else {
        for (int64_t position = range->start; position < range->end; position++)
            if (request->mask[position]) scan_item(scan, position, range, rest, best);
    }
}

/* Loads the records of a cell and their inverse lengths in advance. */
INLINE void prefetch(const Pool *pool, const Range *range) {
    int64_t bytes = (int64_t)(range->end - range->start) * pool->width, end = range->end;
    const uint8_t *records = pool->records + (int64_t)range->start * pool->width;
    for (int64_t at = 0; at < bytes && at < PREFETCHED; at += 64) __builtin_prefetch(records + at);
    __builtin_prefetch(records + bytes - 1);
    end = end < range->start + PREFETCHED ? end : range->start + PREFETCHED;
    for (int64_t at = range->start; at < end; at += 32) __builtin_prefetch(pool->inverse + at);
    __builtin_prefetch(pool->inverse + range->end - 1);
}

INLINE void scan_ranges(const Scan *scan, const Range *ranges, int64_t count, int64_t rest, Best *best) {
    const Pool *pool = scan->pool;
    for (int64_t i = 0; i < count && i < AHEAD; i++) prefetch(pool, ranges + i);
    for (int64_t i = 0; i < count; i++) {
        if (i + AHEAD < count) prefetch(pool, ranges + i + AHEAD);
        scan_range(scan, ranges + i, rest, best);
    }
}

/* The common numbers of levels are constants, so that the loop over them has no branch. */
static void scan_all(const Scan *scan, const Range *ranges, int64_t count, Best *best) {
    int64_t rest = scan->pool->levels - scan->pool->depth;
    switch (rest) {
    case 6: scan_ranges(scan, ranges, count, 6, best); break;
    case 12: scan_ranges(scan, ranges, count, 12, best); break;
    default: scan_ranges(scan, ranges, count, rest, best);
    }
}

/* The cell that has the item at a position: the last one that begins there or before. */
INLINE int64_t cell_of(const Pool *pool, int64_t position, int64_t low, int64_t high) {
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if (pool->start[middle] <= position) low = middle;
        else high = middle;
    }
    return low;
}

/* The same for prefixes above the cells: all cells under each that have items to search. */
static void scan_prefixes(const Scan *scan, const int32_t *const *tables, const int64_t *kept, int64_t count,
                          int64_t stride, Best *best) {
    const Pool *pool = scan->pool;
    const Request *request = scan->request;
    for (int64_t p = 0; p < count; p++) {
        int64_t cell = index_of(kept[p]) * stride, last = cell + stride, end = pool->start[last];
        int64_t position = pool->start[cell];
        while (position < end) {
            if (request->listed) { /* the next one that is allowed may be far away */
                int64_t next = request->count_before[position];
                if (next == request->count_before[end]) break;
                position = request->listed[next];
            }
            cell = cell_of(pool, position, cell, last);
            Range range = {(int32_t)position, pool->start[cell + 1], sum_of(pool, tables, cell, pool->depth),
                           (int32_t)cell};
            scan_all(scan, &range, 1, best);
            position = range.end;
        }
    }
}

/* ---- a search ---- */

/* What a search needs, in the memory of its thread. */
typedef struct {
    int64_t *keys, *kept;            /* of the search, and of the prefixes that it has come to */
    Range *ranges;
    const int32_t **tables;          /* of each level */
    int32_t *entries, *below;        /* all of their entries; those of the levels below the cells */
    int32_t *sums, *scores, *most;   /* of prefixes; see Children */
    void *work;
} Room;

static int make_room(const Pool *pool, const Request *request, Room *room) {
    int64_t widest = request->beam > request->parents ? request->beam : request->parents, parents = 1, size = 1;
    for (int64_t level = 0; level < pool->depth; level++) {
        size = pool->sizes[level] > size ? pool->sizes[level] : size;
        parents *= level ? pool->sizes[level - 1] : 1;
    }
    parents = parents < request->parents ? parents : request->parents;
    int64_t groups = parents * (size / LANES + 1), most = widest > request->limit ? widest : request->limit;
    most = (2 * most > groups ? 2 * most : groups) + 256;
    int64_t scores = parents * (size + LANES), entries = table_entries(pool);
    char *at = claim(sizeof(int64_t) * 2 * most + sizeof(void *) * pool->levels + sizeof(Range) * most
                     + sizeof(int32_t) * (entries + parents + scores + scores / LANES)
                     + table_work(pool));
    if (!at) return NO_MEMORY;
    room->keys = (int64_t *)at, room->kept = room->keys + most;
    room->tables = (const int32_t **)(room->kept + most);
    room->ranges = (Range *)(room->tables + pool->levels);
    room->entries = (int32_t *)(room->ranges + most);
    room->sums = room->entries + entries, room->scores = room->sums + parents;
    room->most = room->scores + scores, room->work = room->most + scores / LANES;
    return 0;
}

INLINE int32_t largest(const int32_t *values, int64_t n) {
    int32_t most = NONE;
    for (int64_t i = 0; i < n; i++) most = values[i] > most ? values[i] : most;
    return most;
}

/* The tables of all levels; returns the most that the second half of those below the cells can add to a sum. */
static int32_t make_tables(const Pool *pool, const Request *request, Room *room) {
    int64_t rest = pool->levels - pool->depth;
    int32_t later = 0, *entries = room->entries, *below = entries + table_entries(pool) - TABLE * rest;
    room->below = below;
    tables_of(pool, request->z, room->work, room->entries);
    for (int64_t level = 0; level < pool->depth; entries += pool->sizes[level++]) room->tables[level] = entries;
    for (int64_t i = 0; i < rest; i++) {
        room->tables[pool->depth + i] = below + TABLE * i;
        if (i >= rest / 2) later += largest(below + TABLE * i, pool->sizes[pool->depth + i]);
    }
    return later;
}

/* Scores the children of the kept prefixes and keeps the best of these instead; returns how many. Of cells, the
   nearest come first, and without a filter those that are worse by more than the margin are dropped. */
static int64_t descend(const Pool *pool, const Request *request, Room *room, int64_t level, int64_t stride,
                       int64_t count) {
    int64_t size = pool->sizes[level], row = (size + LANES - 1) / LANES * LANES, last = level == pool->depth - 1;
    Children children = {pool, request, level, stride, room->kept, count, row, room->scores, room->most};
    for (int64_t p = 0; p < count; p++) room->sums[p] = sum_of(pool, room->tables, index_of(room->kept[p]), level);
    for (int64_t p = 0; p < count; p++) {
        const uint16_t *inverse = pool->prefix_inverse[level];
        int64_t next = index_of(room->kept[p + 5 < count ? p + 5 : p]) * size;
        for (int64_t i = 0; i < size; i += 32) __builtin_prefetch(inverse + next + i);
        score_children(room->sums[p], room->tables[level], inverse + index_of(room->kept[p]) * size, size, row,
                       room->scores + p * row, room->most + p * row / LANES);
    }
    int64_t groups = count * row / LANES, limit = last ? request->beam : request->parents, nearest = pool->nearest;
    int64_t *keys = room->keys, worst = WORST;
    if (!request->mask && (level || !request->modalities)) { /* no worse than the best of so many groups */
        for (int64_t i = 0; i < groups; i++) keys[i] = key_of(room->most[i], i);
        if (groups > limit) worst = key_of(score_of(select_largest(keys, groups, limit)), INT32_MAX);
        int64_t some = groups < limit ? groups : limit;
        if (last && some > nearest) {
            int64_t near = key_of(score_of(select_largest(keys, some, nearest)) - request->margin, INT32_MAX);
            worst = near > worst ? near : worst;
        }
    }
    Best best;
    best_init(&best, keys, limit, limit + limit / 4 + 64, worst);
    add_children(&children, &best);
    int64_t least = INT64_MIN, n = 0;
    if (last && best.count > nearest && !request->mask) least = score_of(select_largest(keys, best.count, nearest)) - request->margin;
    for (int64_t i = 0; i < best.count; i++) {
        room->kept[n] = keys[i];
        n += score_of(keys[i]) >= least;
        __builtin_prefetch(pool->start + index_of(keys[i]) * stride);
    }
    return n;
}

/* Scores the items of the kept cells; of more than `leaves` of them, those of the best cells. */
static void scan_cells(const Scan *scan, const Room *room, int64_t count, Best *best) {
    const Pool *pool = scan->pool;
    const Request *request = scan->request;
    Seen *seen = scan->seen;
    int64_t total = seen->leaves, n = 0;
    if (total > request->leaves) qsort(room->kept, count, sizeof(int64_t), descending);
    for (seen->leaves = 0; n < count && (total <= request->leaves || seen->leaves < request->leaves); n++) {
        int64_t cell = index_of(room->kept[n]);
        Range range = {pool->start[cell], pool->start[cell + 1], sum_of(pool, room->tables, cell, pool->depth),
                       (int32_t)cell};
        room->ranges[n] = range;
        seen->leaves += count_items(request, range.start, range.end);
    }
    seen->beams = n;
    int64_t first = pool->nearest < n ? pool->nearest : n; /* most candidates are among their items */
    scan_all(scan, room->ranges, first, best);
    best_shrink(best);
    scan_all(scan, room->ranges + first, n - first, best);
}

/* Positions of the `limit` best items for a query into `found`, in no order; returns how many. */
int64_t genius_candidates(const Pool *pool, const Request *request, int64_t *found, Seen *seen) {
    Room room;
    if (make_room(pool, request, &room)) return NO_MEMORY;
    int32_t later = make_tables(pool, request, &room);
    Scan scan = {pool, request, room.below, later, seen};
    int64_t stride = 1, count = 1, total, codes = 0;
    for (int64_t level = 0; level < pool->depth; level++) stride *= pool->sizes[level];
    room.kept[0] = key_of(0, 0);
    do {
        stride /= pool->sizes[codes];
        count = descend(pool, request, &room, codes++, stride, count);
        total = 0;
        for (int64_t i = 0; i < count; i++) {
            int64_t cell = index_of(room.kept[i]) * stride;
            total += count_items(request, pool->start[cell], pool->start[cell + stride]);
        }
    } while (codes < pool->depth && total > request->leaves);
    *seen = (Seen){count, total};
    Best best;
    best_init(&best, room.keys, request->limit, 2 * request->limit + 128, WORST);
    if (codes == pool->depth) scan_cells(&scan, &room, count, &best);
    else scan_prefixes(&scan, room.tables, room.kept, count, stride, &best);
    best_shrink(&best);
    for (int64_t i = 0; i < best.count; i++) found[i] = index_of(best.keys[i]);
    return best.count;
}
