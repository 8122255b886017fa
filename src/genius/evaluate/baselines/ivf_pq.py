"""IVF-PQ: inverted lists of product-quantized vectors, what one uses to search many vectors in few bytes.

`ivf-pq` stays within about 16 bytes per item: 8 of codes and FAISS's 8 of id. `ivf-pq-best` is tuned for
recall: longer codes, many lists visited, the first answers re-ranked by full vectors. `pq` is product
quantization without lists: all 16 bytes are codes, and every item is compared. The short codes stand behind
a learned rotation (OPQ), without which they are much worse.
"""

from __future__ import annotations

from typing import Any

from genius.evaluate.baselines.faiss_search import FaissSystem, cells, code_bits, divisor, seeded

ROTATION_ROUNDS = 8  # of OPQ; more take long and gain little
LEARNABLE = 512  # items; FAISS corrupts memory when OPQ learns from fewer vectors than dimensions
DIMS_PER_CODE = 16  # that the rotation keeps


def ivf_pq(code_bytes: int = 8, share: float = 0.25, seed: int = 0) -> FaissSystem:
    """IVF-PQ with rotated codes of `code_bytes`; a `share` of the lists is visited."""

    def prepare(faiss: Any, dim: int, items: int) -> Any:
        rotation, width, parts = _rotation(faiss, dim, code_bytes, items, seed)
        return faiss.IndexPreTransform(rotation, _lists(faiss, width, parts, items, share, seed))

    return FaissSystem("ivf-pq", prepare, {"code_bytes": code_bytes, "share": share, "seed": seed})


def ivf_pq_best(code_bytes: int = 64, share: float = 0.5, refine: int = 4, seed: int = 0) -> FaissSystem:
    """IVF-PQ with long codes; the `refine` times k best are re-ranked by the vectors themselves."""

    def prepare(faiss: Any, dim: int, items: int) -> Any:
        refined = faiss.IndexRefineFlat(_lists(faiss, dim, divisor(dim, code_bytes), items, share, seed))
        refined.k_factor = refine
        return refined

    settings = {"code_bytes": code_bytes, "share": share, "refine": refine, "seed": seed}
    return FaissSystem("ivf-pq-best", prepare, settings)


def pq(code_bytes: int = 16, seed: int = 0) -> FaissSystem:
    """Product quantization with rotated codes of `code_bytes`, all items compared."""

    def prepare(faiss: Any, dim: int, items: int) -> Any:
        rotation, width, parts = _rotation(faiss, dim, code_bytes, items, seed)
        index = faiss.IndexPQ(width, parts, code_bits(items), faiss.METRIC_INNER_PRODUCT)
        index.do_polysemous_training = False
        index.pq.cp.min_points_per_centroid, index.pq.cp.seed = 1, seeded(seed)
        return faiss.IndexPreTransform(rotation, index)

    return FaissSystem("pq", prepare, {"code_bytes": code_bytes, "seed": seed})


def _rotation(faiss: Any, dim: int, code_bytes: int, items: int, seed: int) -> tuple[Any, int, int]:
    """A rotation to be learned (a random one for a small pool), the width it keeps, the number of codes."""
    if items < max(LEARNABLE, 2 * dim):
        return faiss.RandomRotationMatrix(dim, dim), dim, divisor(dim, code_bytes)
    width = min(dim, DIMS_PER_CODE * code_bytes)
    parts = divisor(width, code_bytes)
    quantizer = faiss.ProductQuantizer(width, parts, code_bits(items))
    quantizer.cp.min_points_per_centroid = 1  # a small pool is no reason for a warning per code
    quantizer.cp.seed = seeded(seed)
    rotation = faiss.OPQMatrix(dim, parts, width)
    rotation.niter = ROTATION_ROUNDS
    rotation.pq = rotation.kept = quantizer  # FAISS holds a bare pointer: Python has to keep the object
    return rotation, width, parts


def _lists(faiss: Any, dim: int, parts: int, items: int, share: float, seed: int) -> Any:
    lists = cells(items)
    coarse = faiss.IndexFlatIP(dim)
    index = faiss.IndexIVFPQ(coarse, dim, lists, parts, code_bits(items), faiss.METRIC_INNER_PRODUCT)
    index.do_polysemous_training = False  # half a minute for a kind of search that is not used
    index.pq.cp.min_points_per_centroid = 1
    index.pq.cp.seed = index.cp.seed = seeded(seed)
    index.nprobe = max(1, round(share * lists))
    return index
