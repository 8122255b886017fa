/* The re-ranking of candidates, by their vectors or by the sums of their code vectors. */
#include <math.h>

#include "kernel.h"

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

/* The compiler makes scalars of arrays in nested loops; this is a vector for GCC and Clang, on any processor. */
typedef float Lanes __attribute__((vector_size(sizeof(float) * LANES)));

INLINE float sum_lanes(const Lanes *of) {
    Lanes lanes = *of;
    float half[8], quarter[4];
    for (int i = 0; i < 8; i++) half[i] = lanes[i] + lanes[i + 8];
    for (int i = 0; i < 4; i++) quarter[i] = half[i] + half[i + 4];
    return (quarter[0] + quarter[2]) + (quarter[1] + quarter[3]);
}

/* <vector, phi> of a float16 vector; as `genius.search.rank:products`, `phi` is times 2^112. */
FAST static float product16(const uint16_t *vector, const float *phi, int64_t dim) {
    Lanes lanes = {0};
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
    return sum_lanes(&lanes);
}

/* <sum, z> and |sum|^2 of a sum of code vectors. */
FAST static void compare_sum(const float *const *code_vectors, int64_t levels, const float *z, int64_t dim,
                             float *product, float *square) {
    Lanes products = {0}, squares = {0}, part;
    int64_t whole = dim / LANES * LANES;
    for (int64_t d = 0; d < whole; d += LANES) {
        Lanes sum = {0};
        for (int64_t level = 0; level < levels; level++) {
            memcpy(&part, code_vectors[level] + d, sizeof part);
            sum += part;
        }
        memcpy(&part, z + d, sizeof part);
        products += sum * part;
        squares += sum * sum;
    }
    for (int64_t d = whole; d < dim; d++) {
        float sum = 0;
        for (int64_t level = 0; level < levels; level++) sum += code_vectors[level][d];
        products[d - whole] += sum * z[d];
        squares[d - whole] += sum * sum;
    }
    *product = sum_lanes(&products), *square = sum_lanes(&squares);
}

/* The cells of items: the last ones that begin at their positions or before. All of them are searched for at the
   same time, since each step waits for memory. */
static void find_cells(const Pool *pool, const int64_t *positions, int64_t n, uint32_t *cells) {
    int64_t count = 1, step = 1;
    for (int64_t level = 0; level < pool->depth; level++) count *= pool->sizes[level];
    while (2 * step < count) step *= 2;
    memset(cells, 0, sizeof(uint32_t) * n);
    for (; step; step /= 2)
        for (int64_t i = 0; i < n; i++) {
            int64_t further = cells[i] + step;
            int64_t begins = pool->start[further < count ? further : count]; /* no item is after the last cell */
            cells[i] = begins <= positions[i] ? (uint32_t)further : cells[i];
        }
}

/* All codes of the item at a position, which is in that cell. */
static void codes_of(const Pool *pool, int64_t position, uint32_t cell, uint16_t *codes) {
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

/* The code vectors of the item at a position; they are on their way into the cache. */
static void vectors_of(const Pool *pool, int64_t position, uint32_t cell, uint16_t *codes, const float **vectors) {
    codes_of(pool, position, cell, codes);
    for (int64_t level = 0, first = 0; level < pool->levels; first += pool->sizes[level++]) {
        vectors[level] = pool->vectors + (first + codes[level]) * pool->dim;
        for (int64_t d = 0; d < pool->dim; d += 16) __builtin_prefetch(vectors[level] + d, 0, 2);
    }
}

/* Scores candidates by the cosine of the sum of their code vectors with the query, which has unit length. */
static int rank_by_codes(const Pool *pool, const Request *request, const int64_t *positions, int64_t n,
                         Ranked *ranked) {
    const float **vectors = claim((2 * sizeof(float *) + sizeof(uint16_t)) * pool->levels + sizeof(uint32_t) * n);
    if (!vectors) return NO_MEMORY;
    const float **next = vectors + pool->levels;
    uint32_t *cells = (uint32_t *)(next + pool->levels);
    uint16_t *codes = (uint16_t *)(cells + n);
    find_cells(pool, positions, n, cells);
    if (n) vectors_of(pool, positions[0], cells[0], codes, next);
    for (int64_t i = 0; i < n; i++) {
        const float **own = next;
        next = vectors, vectors = own;
        if (i + 1 < n) vectors_of(pool, positions[i + 1], cells[i + 1], codes, next);
        float product, square;
        compare_sum(own, pool->levels, request->z, pool->dim, &product, &square);
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
    uint32_t *cells = claim(sizeof(uint32_t) * k);
    if (!cells) return NO_MEMORY;
    find_cells(pool, ranked.positions, ranked.count, cells);
    for (int64_t i = 0; i < ranked.count; i++) {
        rows[i] = row_of(pool, ranked.positions[i]);
        codes_of(pool, ranked.positions[i], cells[i], codes + i * pool->levels);
    }
    return ranked.count;
}
