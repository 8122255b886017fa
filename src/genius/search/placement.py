"""Whether a search runs on the GPU or on the CPU beside it.

The figures behind the constants: `python benchmarks/speed.py --device cuda --phases rerank rule`.
"""

from __future__ import annotations

from genius.search.options import Method, Rerank

LARGE_POOL = 100_000  # items
GPU_BATCH = {"none": 4, "codes": 4, "vectors": 256}  # queries from which on a GPU looks up faster
GPU_BATCH_LARGE = {"none": 4, "codes": 8, "vectors": 256}  # in large pools


def runs_on_gpu(method: Method, rerank: Rerank, batch: int, items: int) -> bool:
    """Whether a GPU answers so many queries sooner than the CPU beside it, in a pool of so many items.

    A lookup of one query is many small steps, and embeddings are on the host. The decoder's products are
    large from the first query on.
    """
    if method != "lookup":
        return True
    return batch >= (GPU_BATCH if items < LARGE_POOL else GPU_BATCH_LARGE)[rerank]
