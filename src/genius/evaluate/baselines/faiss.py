"""FAISS indexes as systems, on unit vectors.

faiss-flat    exact search in FAISS; agrees with `exact`, its use is the comparison of speed
flat-…        the same in float16 or int8: half or a quarter of the bytes
hnsw          a navigable graph over the vectors, what most vector databases use by default
hnsw-…        the same in float16 or int8
ivf-pq        inverted lists, about 16 bytes per item: 8 of rotated (OPQ) codes and FAISS's 8 of id
ivf-pq-best   tuned for recall: longer codes, many lists visited, the first answers re-ranked by vectors
pq            product quantization without lists: 16 bytes of rotated codes, every item compared
faiss-rq      residual quantization: additive codes as ours, learned without queries, every item compared
…-train       the same with centroids learned from items of the train split, as ours are

Where only codes are kept, an answer is scored by the inner product of the query with what the code stands for
(`score="product"`, FAISS's own), or the best of those by their cosine (`score="cosine"`), as ours are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from genius.errors import BadInput, MissingExtra
from genius.evaluate.embeddings import EncodedPool, EncodedQueries, Floats
from genius.evaluate.metrics import NO_ITEM
from genius.evaluate.systems import System, TopK

MIN_TRAINING = 8  # items; fewer cannot train any centroids and are kept as vectors
MIN_OPQ_TRAINING = 512  # items; FAISS corrupts memory when OPQ learns from fewer vectors than dimensions
OPQ_ITERATIONS = 8  # more take long and gain little
DIMS_PER_CODE = 16  # that the rotation keeps
ADDED_AT_ONCE = 1 << 18  # items, for the memory of what a rotation gives
RESCORED = 500  # answers that are ranked by cosine
RESCORED_AT_ONCE = 32  # queries, for the memory
Score = Literal["cosine", "product"]
LearnFrom = Callable[[], Floats] | None  # vectors to learn centroids from; None: those of the pool
Build = Callable[[Any, int, int], Any]  # faiss, dim, vectors to learn from -> an index, not yet trained


def load_faiss() -> Any:
    """The faiss module; raises MissingExtra with the install command."""
    try:
        import faiss
    except ImportError:
        raise MissingExtra('FAISS is not installed: pip install "genius-search[bench]"') from None
    return faiss


class FaissSystem(System):
    """A FAISS index on phi.

    Its centroids are learned from the searched pool, or from what `learn_from` gives.
    """

    apart = True

    def __init__(
        self,
        name: str,
        make: Build,
        /,
        *,
        score: Score = "product",
        learn_from: Callable[[], Floats] | None = None,
        **settings: Any,
    ) -> None:
        self.name = name
        self._settings = settings | {"score": score} if score != "product" else settings
        self.built: Any = None  # the FAISS index
        self._faiss, self._make = load_faiss(), make
        self._score, self._learn_from = score, learn_from
        self._fixed_bytes = 0

    def __getstate__(self) -> dict[str, Any]:
        """For another process: the index as it was built, which can be searched but not built anew."""
        left_out = {"_faiss": None, "_make": None, "_learn_from": None}
        return self.__dict__ | left_out | {"built": self._faiss.serialize_index(self.built)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        faiss = load_faiss()
        self.__dict__ |= state | {"_faiss": faiss, "built": faiss.deserialize_index(state["built"])}

    def index(self, pool: EncodedPool) -> None:
        """Learn centroids, then add the pool's embeddings."""
        self.index_vectors(pool.phi)

    def index_vectors(self, vectors: Floats) -> None:
        """The same for vectors (n, dim)."""
        count, dim = vectors.shape
        if not count:
            raise BadInput(f"{self.name}: FAISS cannot index an empty pool")
        rows = np.ascontiguousarray(vectors, dtype=np.float32)
        learned = rows if self._learn_from is None else self._learn_from()
        few = len(learned) < MIN_TRAINING
        self.built = self._faiss.IndexFlatIP(dim) if few else self._make(self._faiss, dim, len(learned))
        self.built.train(learned)
        self._fixed_bytes = self._bytes()
        for start in range(0, count, ADDED_AT_ONCE):
            self.built.add(rows[start : start + ADDED_AT_ONCE])

    def search(self, queries: EncodedQueries, k: int) -> TopK:
        """The `k` best items by the index's score."""
        return self.search_vectors(queries.phi, k)

    def search_vectors(self, vectors: Floats, k: int) -> TopK:
        """The same for query vectors (queries, dim)."""
        vectors = np.ascontiguousarray(vectors)
        if self._score == "cosine":
            return self._by_cosine(vectors, k)
        scores, rows = self.built.search(vectors, k)  # short lists end in -1
        return TopK(rows, np.where(rows == NO_ITEM, -np.inf, scores).astype(np.float32))

    def _by_cosine(self, vectors: Floats, k: int) -> TopK:
        """The RESCORED best by inner product, ranked by the cosine with what their codes stand for."""
        top = TopK.empty(len(vectors), k)
        depth = max(k, min(RESCORED, int(self.built.ntotal)))
        for start in range(0, len(vectors), RESCORED_AT_ONCE):
            part = vectors[start : start + RESCORED_AT_ONCE]
            _, rows, decoded = self.built.search_and_reconstruct(part, depth)
            length = np.maximum(np.linalg.norm(decoded, axis=2), 1e-12)
            scores = np.einsum("qd,qnd->qn", part, decoded) / length
            scores[rows == NO_ITEM] = -np.inf
            order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
            target = slice(start, start + len(part)), slice(0, order.shape[1])
            top.rows[target] = np.take_along_axis(rows, order, axis=1)
            top.scores[target] = np.take_along_axis(scores, order, axis=1)
        return top

    def bytes_per_item(self) -> float:
        """The index's size on disk, divided by its items.

        Centroids and rotations, which do not grow with the pool, are left out, as our own codebooks are.
        """
        return (self._bytes() - self._fixed_bytes) / int(self.built.ntotal)

    def _bytes(self) -> int:
        return len(self._faiss.serialize_index(self.built))


def flat(width: str = "float32") -> FaissSystem:
    """Exact search by inner product over vectors stored in a `width`."""

    def make(faiss: Any, dim: int, items: int) -> Any:
        if width == "float32":
            return faiss.IndexFlatIP(dim)
        return faiss.IndexScalarQuantizer(dim, _scalar(faiss, width), faiss.METRIC_INNER_PRODUCT)

    return FaissSystem("faiss-flat" if width == "float32" else f"flat-{width}", make, width=width)


def hnsw(width: str = "float32", links: int = 32, build: int = 100, search: int = 128) -> FaissSystem:
    """A navigable graph: links per item, efConstruction and efSearch."""

    def make(faiss: Any, dim: int, items: int) -> Any:
        index = (
            faiss.IndexHNSWFlat(dim, links, faiss.METRIC_INNER_PRODUCT)
            if width == "float32"
            else faiss.IndexHNSWSQ(dim, _scalar(faiss, width), links, faiss.METRIC_INNER_PRODUCT)
        )
        index.hnsw.efConstruction, index.hnsw.efSearch = build, search
        return index

    name = "hnsw" if width == "float32" else f"hnsw-{width}"
    return FaissSystem(name, make, width=width, links=links, build=build, search=search)


def _scalar(faiss: Any, width: str) -> int:
    """FAISS's number of a scalar format."""
    formats = {"float16": faiss.ScalarQuantizer.QT_fp16, "int8": faiss.ScalarQuantizer.QT_8bit}
    return int(formats[width])


def ivf_pq(
    code_bytes: int = 8,
    share: float = 0.25,
    seed: int = 0,
    score: Score = "product",
    learn_from: LearnFrom = None,
) -> FaissSystem:
    """IVF-PQ with rotated codes of `code_bytes`; a `share` of the lists is visited."""

    def make(faiss: Any, dim: int, items: int) -> Any:
        rotation, width, parts = _rotation(faiss, dim, code_bytes, items, seed)
        return faiss.IndexPreTransform(rotation, _inverted_lists(faiss, width, parts, items, share, seed))

    name = "ivf-pq" if learn_from is None else "ivf-pq-train"
    settings = {"code_bytes": code_bytes, "share": share, "seed": seed}
    return FaissSystem(name, make, score=score, learn_from=learn_from, **settings)


def ivf_pq_best(code_bytes: int = 64, share: float = 0.5, refine: int = 4, seed: int = 0) -> FaissSystem:
    """IVF-PQ with long codes; the `refine` times k best are re-ranked by the vectors themselves."""

    def make(faiss: Any, dim: int, items: int) -> Any:
        lists = _inverted_lists(faiss, dim, largest_divisor(dim, code_bytes), items, share, seed)
        refined = faiss.IndexRefineFlat(lists)
        refined.k_factor = refine
        return refined

    return FaissSystem("ivf-pq-best", make, code_bytes=code_bytes, share=share, refine=refine, seed=seed)


def pq(
    code_bytes: int = 16, seed: int = 0, score: Score = "product", learn_from: LearnFrom = None
) -> FaissSystem:
    """Product quantization with rotated codes of `code_bytes`, all items compared."""

    def make(faiss: Any, dim: int, items: int) -> Any:
        rotation, width, parts = _rotation(faiss, dim, code_bytes, items, seed)
        index = faiss.IndexPQ(width, parts, code_bits(items), faiss.METRIC_INNER_PRODUCT)
        index.do_polysemous_training = False
        _seed(index.pq.cp, seed)
        return faiss.IndexPreTransform(rotation, index)

    name = "pq" if learn_from is None else "pq-train"
    return FaissSystem(name, make, score=score, learn_from=learn_from, code_bytes=code_bytes, seed=seed)


def faiss_rq(
    levels: int = 8,
    bits: int = 8,
    beam: int = 5,
    seed: int = 0,
    score: Score = "product",
    learn_from: LearnFrom = None,
) -> FaissSystem:
    """An IndexResidualQuantizer with `levels` codes of `bits` bits; `beam` partial codings while encoding.

    Beam and rounds of k-means are FAISS's own.
    """

    def make(faiss: Any, dim: int, items: int) -> Any:
        index = faiss.IndexResidualQuantizer(
            dim, levels, min(bits, code_bits(items)), faiss.METRIC_INNER_PRODUCT,
            faiss.AdditiveQuantizer.ST_LUT_nonorm,
        )  # fmt: skip
        index.rq.max_beam_size = beam
        index.rq.train_type = faiss.ResidualQuantizer.Train_default
        _seed(index.rq.cp, seed)
        return index

    name = "faiss-rq" if learn_from is None else "faiss-rq-train"
    settings = {"levels": levels, "bits": bits, "beam": beam, "seed": seed}
    return FaissSystem(name, make, score=score, learn_from=learn_from, **settings)


def _rotation(faiss: Any, dim: int, code_bytes: int, items: int, seed: int) -> tuple[Any, int, int]:
    """A rotation to be learned (a random one for a small pool), the width it keeps, the number of codes."""
    if items < max(MIN_OPQ_TRAINING, 2 * dim):
        return faiss.RandomRotationMatrix(dim, dim), dim, largest_divisor(dim, code_bytes)
    width = min(dim, DIMS_PER_CODE * code_bytes)
    parts = largest_divisor(width, code_bytes)
    quantizer = faiss.ProductQuantizer(width, parts, code_bits(items))
    _seed(quantizer.cp, seed)
    rotation = faiss.OPQMatrix(dim, parts, width)
    rotation.niter = OPQ_ITERATIONS
    rotation.pq = rotation.kept = quantizer  # FAISS holds a bare pointer: Python has to keep the object
    return rotation, width, parts


def _inverted_lists(faiss: Any, dim: int, parts: int, items: int, share: float, seed: int) -> Any:
    lists = inverted_lists(items)
    coarse = faiss.IndexFlatIP(dim)
    index = faiss.IndexIVFPQ(coarse, dim, lists, parts, code_bits(items), faiss.METRIC_INNER_PRODUCT)
    index.do_polysemous_training = False  # half a minute for a kind of search that is not used
    _seed(index.pq.cp, seed)
    index.cp.seed = index.pq.cp.seed
    index.nprobe = max(1, round(share * lists))
    return index


def _seed(clustering: Any, seed: int) -> None:
    """Seed FAISS's k-means (1234 is its default) and allow a small pool without a warning per code."""
    clustering.min_points_per_centroid, clustering.seed = 1, 1234 + seed


def largest_divisor(dim: int, most: int) -> int:
    """The largest number of equal parts, at most `most`, that `dim` can be cut into."""
    return max(parts for parts in range(1, most + 1) if dim % parts == 0)


def inverted_lists(items: int) -> int:
    """Inverted lists for a pool: about 4 sqrt(n), with at least 39 items each as FAISS asks for."""
    return max(1, min(int(4 * items**0.5), items // 39))


def code_bits(items: int) -> int:
    """8 bits a code, fewer where there are fewer items than centroids."""
    return min(8, items.bit_length() - 1)
