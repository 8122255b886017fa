"""Residual quantization in FAISS: the same kind of codes as ours, learned without queries, searched in full.

Kept: additive codes of equal length, asymmetric comparison with the query's phi. Not ours: no contrastive
training, no modality level, no trie; every item is compared.
"""

from __future__ import annotations

from typing import Any

from genius.evaluate.baselines.faiss_search import FaissSystem, code_bits, seeded


def faiss_rq(levels: int = 8, bits: int = 8, beam: int = 2, seed: int = 0) -> FaissSystem:
    """An IndexResidualQuantizer with `levels` codes of `bits` bits; `beam` partial codings while encoding."""

    def prepare(faiss: Any, dim: int, items: int) -> Any:
        width = min(bits, code_bits(items))
        index = faiss.IndexResidualQuantizer(
            dim, levels, width, faiss.METRIC_INNER_PRODUCT, faiss.AdditiveQuantizer.ST_LUT_nonorm
        )
        index.rq.max_beam_size = beam
        index.rq.train_type = faiss.ResidualQuantizer.Train_default
        index.rq.cp.niter = 10
        index.rq.cp.min_points_per_centroid, index.rq.cp.seed = 1, seeded(seed)
        return index

    return FaissSystem("faiss-rq", prepare, {"levels": levels, "bits": bits, "beam": beam, "seed": seed})
