/* Tables: the product of a query with every code vector, in units.

Code vectors are in blocks of BLOCK, and a block has the first `quad` bytes of each of them, then the next: so the
sums of many code vectors grow side by side, and none has to be put together from parts of a register. Numbers of the
levels of cells are bytes, less 128; those of the levels below are half a byte, less 8: a byte has the numbers i and
i + quad of each 2 * quad. Reading them is what takes the time, and items need less precision.
*/
#include <math.h>

#include "kernel.h"

#define BLOCK 64
#define WIDTH 8    /* a code vector is filled up with zeros to a multiple of this */
#define QUAD 4     /* bytes that one instruction multiplies and sums */

#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__) && !defined(PLAIN)
#include <immintrin.h>
#define VNNI __attribute__((target("avx512f,avx512bw,avx512vl,avx512vnni")))
#endif

INLINE int64_t whole(int64_t n, int64_t parts) { return (n + parts - 1) / parts * parts; }
INLINE int64_t padded_dim(const Pool *pool) { return whole(pool->dim, WIDTH); }
INLINE int64_t coarse_entries(const Pool *pool) { return whole(pool->cell_codes, BLOCK); }
INLINE int64_t fine_entries(const Pool *pool) { return (pool->levels - pool->depth) * TABLE; }
int64_t table_entries(const Pool *pool) { return coarse_entries(pool) + fine_entries(pool); }
int64_t table_work(const Pool *pool) { return padded_dim(pool) * (int64_t)sizeof(int16_t); }

/* Bytes of a code vector that are next to each other. */
int64_t genius_kernel_quad(void) {
#ifdef VNNI
    if (__builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512vl")) return QUAD;
#endif
    return 1;
}

FAST static void products(const uint8_t *books, const int16_t *query, int64_t codes, int64_t dim, int32_t *out) {
    for (int64_t first = 0; first < codes; first += BLOCK) {
        int32_t sums[BLOCK] = {0};
        for (int64_t d = 0; d < dim; d++, books += BLOCK)
            for (int i = 0; i < BLOCK; i++) sums[i] += (int16_t)(books[i] * query[d]);
        memcpy(out + first, sums, sizeof sums);
    }
}

FAST static void half_products(const uint8_t *books, const int16_t *query, int64_t codes, int64_t dim, int32_t *out) {
    for (int64_t first = 0; first < codes; first += BLOCK) {
        int32_t sums[BLOCK] = {0};
        for (int64_t d = 0; d < dim; d += 2, books += BLOCK)
            for (int i = 0; i < BLOCK; i++)
                sums[i] += (int16_t)((books[i] & 15) * query[d] + (books[i] >> 4) * query[d + 1]);
        memcpy(out + first, sums, sizeof sums);
    }
}

#ifdef VNNI
/* Both, where there are instructions for products of bytes. */
VNNI static void products_of_bytes(const uint8_t *books, const int8_t *query, int64_t codes, int64_t dim, int half,
                                   int32_t *out) {
    const __m512i low = _mm512_set1_epi8(15);
    for (int64_t first = 0; first < codes; first += BLOCK) {
        __m512i sums[4] = {0};
        for (int64_t d = 0; d < dim; d += half ? 2 * QUAD : QUAD, books += BLOCK * QUAD) {
            int32_t quads[2] = {0};
            memcpy(quads, query + d, half ? 2 * QUAD : QUAD);
            __m512i one = _mm512_set1_epi32(quads[0]), other = _mm512_set1_epi32(quads[1]);
            for (int i = 0; i < 4; i++) {
                __m512i book = _mm512_loadu_si512(books + 64 * i);
                if (half) {
                    sums[i] = _mm512_dpbusd_epi32(sums[i], _mm512_and_si512(book, low), one);
                    book = _mm512_and_si512(_mm512_srli_epi16(book, 4), low);
                }
                sums[i] = _mm512_dpbusd_epi32(sums[i], book, half ? other : one);
            }
        }
        for (int i = 0; i < 4; i++) _mm512_storeu_si512(out + first + 16 * i, sums[i]);
    }
}

VNNI static void products_by_vnni(const Pool *pool, const int16_t *query, int32_t *out) {
    int64_t dim = padded_dim(pool), coarse = coarse_entries(pool);
    int8_t *bytes = (int8_t *)query; /* each is written after it was read */
    for (int64_t d = 0; d < dim; d++) bytes[d] = (int8_t)query[d];
    products_of_bytes(pool->coarse, bytes, coarse, dim, 0, out);
    products_of_bytes(pool->fine, bytes, fine_entries(pool), dim, 1, out + coarse);
}
#endif

FAST static void to_units(const float *factor, float length, int32_t less, int64_t codes, int32_t *out) {
    for (int64_t code = 0; code < codes; code++)
        out[code] = (int32_t)rintf((float)(out[code] - less) * factor[code] / length);
}

void tables_of(const Pool *pool, const float *z, void *work, int32_t *out) {
    int64_t dim = padded_dim(pool), coarse = coarse_entries(pool), fine = fine_entries(pool);
    int16_t *query = work;
    float most = 0;
    for (int64_t d = 0; d < pool->dim; d++) most = fabsf(z[d]) > most ? fabsf(z[d]) : most;
    float scale = most > 0 ? 127.0f / most : 0.0f;
    int64_t square = 0;
    int32_t sum = 0;
    for (int64_t d = 0; d < dim; d++) {
        query[d] = d < pool->dim ? (int16_t)rintf(z[d] * scale) : 0;
        square += (int32_t)query[d] * query[d];
        sum += query[d];
    }
    float length = square ? (float)sqrt((double)square) : 1.0f;
#ifdef VNNI
    if (genius_kernel_quad() == QUAD) products_by_vnni(pool, query, out);
    else
#endif
    {
        products(pool->coarse, query, coarse, dim, out);
        half_products(pool->fine, query, fine, dim, out + coarse);
    }
    to_units(pool->factor, length, 128 * sum, coarse, out);
    to_units(pool->factor + coarse, length, 8 * sum, fine, out + coarse);
}
