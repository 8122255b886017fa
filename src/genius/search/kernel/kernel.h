/* What the parts of the kernel share: the pool, a request, and how loops are compiled. */
#ifndef GENIUS_KERNEL_H
#define GENIUS_KERNEL_H
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define LANES 16
#define TABLE 256      /* codes below the cells are bytes */
#define AHEAD 8        /* cells, or vectors, that are loaded in advance */
#define MAX_LEVELS 64  /* as in cells.py */
enum { NO_MEMORY = -1, NO_VECTOR = -2 };

#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__) && defined(__linux__)
#define FAST __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define FAST
#endif
#define INLINE static inline __attribute__((always_inline))

typedef struct {
    int64_t items;
    int32_t levels, depth;           /* codes of an item; codes that name a cell */
    int32_t width, code_at, row_at, row_bytes; /* of a record: bytes, code of level `depth`, row */
    int32_t dim, cell_codes;         /* of the codebooks: width, codes of the first `depth` levels */
    const int32_t *sizes;            /* (levels,) */
    const uint8_t *records;          /* (items, width) */
    const int32_t *start;            /* (cells + 1,) first position of each cell */
    int64_t nearest;                 /* cells that others are compared with */
    uint16_t *inverse;               /* (items,) inverse length of each item, 0 where not known yet */
    const uint16_t *const *prefix_inverse; /* (depth,) of all prefixes of 1, 2, ... codes; 0: no items */
    const uint8_t *coarse, *fine;    /* code vectors in whole numbers, of cells and below: see tables.c */
    const float *factor;             /* what makes their products multiples of one unit */
    const float *vectors;            /* (codes, dim) code vectors */
    const int16_t *whole;            /* the same in whole multiples of whole_unit, filled up: see lengths.c */
    float whole_unit, inverse_unit;  /* an inverse length is a multiple of 1 / inverse_unit */
} Pool;

typedef struct {
    int64_t beam, parents;           /* cells kept, and prefixes at each level above */
    int64_t leaves, limit;           /* items scored, candidates kept */
    int64_t margin;                  /* how much worse than the nearest cells others may be */
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
    int64_t beams, leaves;           /* prefixes it ended with, items under them */
} Seen;

/* Memory of one thread, kept for its next search. */
void *claim(size_t bytes);

/* The product of a query with every code vector, in units: those of the levels of cells, one after the other, and
   from entry table_entries - TABLE * (levels - depth) on those of the levels below, TABLE entries each. */
void tables_of(const Pool *pool, const float *z, void *work, int32_t *out);
int64_t table_entries(const Pool *pool);
int64_t table_work(const Pool *pool); /* bytes */

/* Computes and keeps the inverse length of the item at a position, which is in that cell. */
uint16_t learn_inverse(const Pool *pool, int64_t position, int64_t cell);

/* Positions of the `limit` best items for a query into `found`, in no order; returns how many. */
int64_t genius_candidates(const Pool *pool, const Request *request, int64_t *found, Seen *seen);

#endif
