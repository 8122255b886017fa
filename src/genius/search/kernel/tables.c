/* Tables: the product of a query with every code vector, in units.

Code vectors are in blocks of 64, and a block has the first QUAD numbers of each, then the next ones: sums of
many code vectors grow side by side, and no sum has to be put together from the parts of a register.
*/
#include <math.h>

#include "kernel.h"

#define QUAD 4
#define BLOCK 64   /* `BLOCK` of __init__.py */

#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__)
#include <immintrin.h>
#define VNNI __attribute__((target("avx512f,avx512bw,avx512vl,avx512vnni")))
#endif

INLINE int64_t quads_of(const Pool *pool) { return (pool->dim + QUAD - 1) / QUAD; }
int64_t codes_in_blocks(const Pool *pool) { return (pool->codes + BLOCK - 1) / BLOCK * BLOCK; }
size_t table_work(const Pool *pool) { return QUAD * quads_of(pool) * (sizeof(int16_t) + 1); }

FAST static void products(const int8_t *books, const int16_t *query, int64_t codes, int64_t quads, int32_t *out) {
    for (int64_t first = 0; first < codes; first += BLOCK) {
        int32_t *sums = out + first;
        for (int i = 0; i < BLOCK; i++) sums[i] = 0;
        for (int64_t quad = 0; quad < quads; quad++, books += BLOCK * QUAD, query += QUAD)
            for (int i = 0; i < BLOCK; i++) {
                const int8_t *book = books + QUAD * i;
                sums[i] += (int16_t)book[0] * query[0] + (int16_t)book[1] * query[1]
                           + (int16_t)book[2] * query[2] + (int16_t)book[3] * query[3];
            }
        query -= QUAD * quads;
    }
}

#ifdef VNNI
/* The same where there are instructions for products of bytes, of which one is unsigned: the query's, + 128. */
VNNI static void products_of_bytes(const int8_t *books, const int32_t *book_sums, const uint8_t *query,
                                   int64_t codes, int64_t quads, int32_t *out) {
    const __m512i *block = (const __m512i *)books;
    for (int64_t first = 0; first < codes; first += BLOCK, block += 4 * quads) {
        __m512i sums[4];
        for (int i = 0; i < 4; i++)
            sums[i] = _mm512_slli_epi32(_mm512_loadu_si512(book_sums + first + 16 * i), 7);
        for (int i = 0; i < 4; i++) sums[i] = _mm512_sub_epi32(_mm512_setzero_si512(), sums[i]);
        for (int64_t quad = 0; quad < quads; quad++) {
            int32_t four;
            memcpy(&four, query + QUAD * quad, sizeof four);
            __m512i of_query = _mm512_set1_epi32(four);
            for (int i = 0; i < 4; i++)
                sums[i] = _mm512_dpbusd_epi32(sums[i], of_query, _mm512_loadu_si512(block + 4 * quad + i));
        }
        for (int i = 0; i < 4; i++) _mm512_storeu_si512(out + first + 16 * i, sums[i]);
    }
}
#endif

FAST static void to_units(const float *factor, float length, int64_t codes, int32_t *out) {
    for (int64_t code = 0; code < codes; code++)
        out[code] = (int32_t)rintf((float)out[code] * factor[code] / length);
}

void tables_of(const Pool *pool, const float *z, void *work, int32_t *out) {
    int64_t dim = pool->dim, quads = quads_of(pool), codes = codes_in_blocks(pool), square = 0;
    int16_t *query = work;
    float most = 0;
    for (int64_t d = 0; d < dim; d++) most = fabsf(z[d]) > most ? fabsf(z[d]) : most;
    float scale = most > 0 ? 127.0f / most : 0.0f;
    for (int64_t d = 0; d < QUAD * quads; d++) {
        query[d] = d < dim ? (int16_t)rintf(z[d] * scale) : 0;
        square += (int32_t)query[d] * query[d];
    }
#ifdef VNNI
    if (__builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512vl")) {
        uint8_t *bytes = (uint8_t *)(query + QUAD * quads);
        for (int64_t d = 0; d < QUAD * quads; d++) bytes[d] = (uint8_t)(query[d] + 128);
        products_of_bytes(pool->small, pool->small_sums, bytes, codes, quads, out);
    } else
#endif
        products(pool->small, query, codes, quads, out);
    to_units(pool->factor, square ? (float)sqrt((double)square) : 1.0f, pool->codes, out);
}
