/* Lengths of items: those of the sums of their code vectors, rounded to whole numbers, so that any order of summation
   gives the same. */
#include <math.h>

#include "kernel.h"

#define STEP 32 /* numbers of a code vector that are summed together */

/* Vectors for GCC and Clang, on any processor: of arrays in nested loops the compiler makes scalars. */
typedef int16_t Numbers __attribute__((vector_size(sizeof(int16_t) * STEP), aligned(2)));
typedef int32_t Squares __attribute__((vector_size(sizeof(int32_t) * STEP)));

/* The squared length of a sum of code vectors, each of `dim` whole numbers. */
FAST static int32_t squared_length(const int16_t *const *vectors, int64_t levels, int64_t dim) {
    Squares squares = {0};
    for (int64_t d = 0; d < dim; d += STEP) {
        Numbers sums = {0};
        for (int64_t level = 0; level < levels; level++) sums += *(const Numbers *)(vectors[level] + d);
        Squares wide = __builtin_convertvector(sums, Squares);
        squares += wide * wide;
    }
    int32_t sum = 0;
    for (int i = 0; i < STEP; i++) sum += squares[i];
    return sum;
}

uint16_t learn_inverse(const Pool *pool, int64_t position, int64_t cell) {
    const int16_t *vectors[MAX_LEVELS];
    int64_t dim = (pool->dim + STEP - 1) / STEP * STEP, first = pool->cell_codes;
    const uint8_t *codes = pool->records + position * pool->width + pool->code_at;
    for (int64_t level = pool->depth - 1, end = first; level >= 0; level--) {
        end -= pool->sizes[level];
        vectors[level] = pool->whole + (end + cell % pool->sizes[level]) * dim;
        cell /= pool->sizes[level];
    }
    for (int64_t level = pool->depth; level < pool->levels; first += pool->sizes[level++])
        vectors[level] = pool->whole + (first + codes[level - pool->depth]) * dim;
    float length = sqrtf((float)squared_length(vectors, pool->levels, dim)) * pool->whole_unit;
    float inverse = rintf(pool->inverse_unit / (length > 1e-6f ? length : 1e-6f));
    uint16_t known = (uint16_t)(inverse < 1 ? 1 : inverse > 32767 ? 32767 : inverse);
    pool->inverse[position] = known; /* threads that do so at the same time write the same */
    return known;
}
