"""Codes fitted to the searched pool without labels, beside FAISS's quantizers and exact search.

    python benchmarks/fit.py --data BENCH --features FEATURES/clip_vitb16

Embeddings are those of `mini`, all rows, and CLIP's image vectors, rows whose queries and items all have a
picture (texts are left out). Every system is fitted to the pool that is searched and has 15 bytes an item, in
ours two bits of the modality among them; PQ gets 16, since 512 has no 15 parts. "genius" compares a query
with all items' codes, "genius, lookup" is the engine's search by codes alone. "faiss RQ, by modality" is
FAISS RQ fitted to each modality by itself, as ours is. All are scored by cosine and by inner product;
"nearest found" is the share of the first 10 that are no farther from the query than the 10 nearest. Ours and
FAISS RQ are fitted with several seeds: figures are means over them, with the least and the largest share of
exact search beside. Options are chosen on val, test is searched once per seed. Pools of val are half as large
as those of test; `--train-items 8200` adds items of train to them. `--parts val` leaves test alone. Writes
benchmarks/results/fit.json; `fit_speed.py` measures time and memory.

Several processes can share the work, each with some of the vectors, settings and parts:

    python benchmarks/fit.py --data BENCH --vectors mini --parts test --settings universal --out a.json
    python benchmarks/fit.py --data BENCH --features FEATURES/clip_vitb16 --vectors clip --out b.json
    python benchmarks/fit.py --merge a.json b.json
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from _harness import run
from numpy.typing import NDArray

from genius.data.base import Dataset, Row, open_dataset
from genius.encode.base import Parts
from genius.encode.precomputed import VectorTable, read_vectors
from genius.errors import BadInput
from genius.evaluate.baselines.exact import nearest
from genius.evaluate.baselines.faiss import code_bits, largest_divisor, load_faiss
from genius.evaluate.cache import read_items, read_queries
from genius.evaluate.embeddings import Embedder, EncodedPool, EncodedQueries, EncoderOnly
from genius.evaluate.protocol import DEPTH, RowMetrics, RowQrels, match_qrels, mean_over_rows, row_metrics
from genius.evaluate.systems import LOOKUP_BEAM, CodeSearch
from genius.model import Model
from genius.quantize.fit import FitOptions, fit_quantizer, refinement_rounds
from genius.quantize.model import Quantizer
from genius.quantize.refine import refine
from genius.search.options import SearchOptions
from genius.types import Item, Modality

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
Fit = Callable[[Floats, Ints], Floats]  # embeddings and modalities of a pool -> what its codes stand for
Source = Callable[[str], Callable[[str], Iterator["Pool"]]]  # a setting, then a split
SETTINGS = ("universal", "local")
VECTORS = ("mini", "clip")
MADE_BY = ("command", "commit", "changed", "versions")  # what a result begins with
BYTES = 15
OURS = FitOptions(item_bytes=BYTES)
NEAREST = 10  # items, by exact search, that codes should find
SAME = 1e-5  # difference of similarities that are equal
IMAGE_TASKS = (4, 7, 8)  # every query and every item has a picture
MODALITIES = tuple(Modality)
BOTH = ("cosine", "product")  # scores


class Pool(NamedTuple):
    """Items to search, and the rows that are searched in them."""

    phi: Floats  # (n, dim)
    modality: Ints  # (n,)
    rows: Mapping[Row, tuple[Floats, RowQrels]]  # embeddings of the queries, and what they should find


def mini_pools(dataset: Dataset, embedder: Embedder, split: str, setting: str) -> Iterator[Pool]:
    """The pools of a setting with all rows, by the embeddings of `mini`."""
    rows = list(dataset.rows(split))
    for one in [None] if setting == "universal" else rows:
        pool = embedder.pool(read_items(dataset.pool(split, one), fuses=False))
        row_of = {name: number for number, name in enumerate(pool.ids)}
        searched = {}
        for row in rows if one is None else [one]:
            queries = list(dataset.queries(split, row))
            encoded = embedder.queries(
                read_queries(queries, lambda q: dataset.instructions.chosen(q).sentence, fuses=False)
            )
            searched[row] = encoded.phi, match_qrels(row, encoded.ids, dataset.qrels(split, row), row_of)
        yield Pool(pool.phi, pool.modality.astype(np.int64), searched)


def clip_pools(dataset: Dataset, root: Path, table: VectorTable, split: str, setting: str) -> Iterator[Pool]:
    """The pools of a setting with the rows of pictures, by image vectors alone."""

    def vectors(images: Sequence[Any]) -> Floats:
        found = table.lookup([str(Path(image).relative_to(root)) for image in images])
        return unit(found)

    rows = [row for row in dataset.rows(split) if row.task in IMAGE_TASKS]
    for one in [None] if setting == "universal" else rows:
        items = [item for item in dataset.pool(split, one) if item.image is not None]
        row_of = {item.id: number for number, item in enumerate(items)}
        searched = {}
        for row in rows if one is None else [one]:
            queries = list(dataset.queries(split, row))
            matched = match_qrels(row, [q.id for q in queries], dataset.qrels(split, row), row_of)
            searched[row] = vectors([query.image for query in queries]), matched
        modality = np.array([MODALITIES.index(item.modality) for item in items])
        yield Pool(vectors([item.image for item in items]), modality, searched)


class Codes(NamedTuple):
    """Our codes of a pool."""

    quantizer: Quantizer
    codes: Ints  # (n, levels)


class Fitted:
    """Our codes; with `gap`, the modalities are not told apart, so the gap between them stays."""

    def __init__(self, options: FitOptions, *, gap: bool = False) -> None:
        self._options, self._gap = options, gap
        self._seen: dict[bytes, Codes] = {}

    def codes(self, phi: Floats, modality: Ints) -> Codes:
        """Codebooks fitted to a pool, and its codes."""
        key = blake2b(phi.tobytes()).digest()
        if key not in self._seen:
            z, known = torch.from_numpy(phi), torch.from_numpy(0 * modality if self._gap else modality)
            quantizer = fit_quantizer(z, known, self._options)
            self._seen[key] = Codes(quantizer, quantizer.encode(z, known).numpy())
        return self._seen[key]

    def __call__(self, phi: Floats, modality: Ints) -> Floats:
        quantizer, codes = self.codes(phi, modality)
        return quantizer.vectors_of(codes)


def refined_as_a_whole(phi: Floats, modality: Ints) -> Floats:
    """Ours with refinement of the sum of all levels alone, in which all items count alike."""
    z, known = torch.from_numpy(phi), torch.from_numpy(modality)
    quantizer = fit_quantizer(z, known, replace(OURS, rounds=0, by_modality=False))
    refine(quantizer.residual, z, known, rounds=refinement_rounds(len(z)), beam=OURS.code_beam)
    return quantizer.decode(quantizer.encode(z, known)).numpy()


def product_codes(phi: Floats, modality: Ints) -> Floats:
    """FAISS PQ."""
    faiss = load_faiss()
    parts = largest_divisor(phi.shape[1], BYTES + 1)
    return _coded(faiss.ProductQuantizer(phi.shape[1], parts, code_bits(len(phi))), phi)


def rotated_codes(phi: Floats, modality: Ints) -> Floats:
    """FAISS OPQ; a pool with fewer items than dimensions gets a random rotation."""
    faiss = load_faiss()
    dim, width = phi.shape[1], 16 * BYTES
    rotation = faiss.RandomRotationMatrix(dim, width)
    if len(phi) >= 2 * dim:
        rotation = faiss.OPQMatrix(dim, BYTES, width)
        rotation.niter = 8
    rotation.train(phi)
    quantizer = faiss.ProductQuantizer(width, BYTES, code_bits(len(phi)))
    return np.asarray(rotation.reverse_transform(_coded(quantizer, rotation.apply(phi))))


def residual_codes(phi: Floats, modality: Ints, seed: int = 0) -> Floats:
    """FAISS RQ with FAISS's own beam and rounds, as in the benchmark of all systems."""
    faiss = load_faiss()
    quantizer = faiss.ResidualQuantizer(phi.shape[1], BYTES, code_bits(len(phi)))
    quantizer.train_type = faiss.ResidualQuantizer.Train_default
    quantizer.cp.seed += seed
    return _coded(quantizer, phi)


def residual_codes_by_modality(phi: Floats, modality: Ints, seed: int = 0) -> Floats:
    """FAISS RQ fitted to the items of each modality."""
    coded = np.empty_like(phi)
    for kind in np.unique(modality):
        items = modality == kind
        coded[items] = residual_codes(np.ascontiguousarray(phi[items]), modality[items], seed)
    return coded


def _coded(quantizer: Any, phi: Floats) -> Floats:
    quantizer.cp.min_points_per_centroid = 1
    quantizer.train(phi)
    return np.asarray(quantizer.decode(quantizer.compute_codes(phi)))


def unit(x: Floats) -> Floats:
    return np.asarray(x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12))


def lookup(pool: Pool, fit: Fitted) -> Callable[[Floats], Ints]:
    """The engine's search by codes alone."""
    quantizer, rows = fit.codes(pool.phi, pool.modality)
    codes = rows.astype(np.uint16)
    books = [book.numpy() for book in quantizer.residual.codebooks()]
    system = CodeSearch("lookup", books, SearchOptions(rerank="codes", beam=LOOKUP_BEAM))
    ids = [str(number) for number in range(len(codes))]
    modality = pool.modality.astype(np.uint8)

    def parts(rows: Ints) -> Parts:
        fused = pool.phi[rows]
        return Parts(fused, np.zeros_like(fused))

    system.index(EncodedPool(ids, modality, pool.phi, codes, digest="", unreadable=[], parts=parts))

    def search(queries: Floats) -> Ints:
        count = len(queries)
        zeros = np.zeros(count, np.uint8)
        asked = EncodedQueries(["?"] * count, zeros, queries, queries, zeros == 0, "")
        return system.search(asked, DEPTH).rows

    return search


class Figures:
    """Metrics of systems on rows."""

    def __init__(self, setting: str) -> None:
        self._setting = setting
        self._rows: dict[str, list[RowMetrics]] = {}
        self._errors: dict[str, list[tuple[int, float]]] = {}
        self._tenth: dict[Row, Floats] = {}  # similarity of each query with the last of its nearest
        self._found: dict[str, list[float]] = {}  # how many of the nearest, for each query

    def add(self, name: str, pool: Pool, search: Callable[[Floats], Ints]) -> None:
        for row, (queries, matched) in pool.rows.items():
            answers = search(queries)
            found = row_metrics(row, self._setting, name, matched, [answers], len(pool.phi))
            self._rows.setdefault(name, []).append(found)
            similar = np.einsum("qd,qnd->qn", queries, pool.phi[answers[:, :NEAREST]])
            if name == "exact":
                self._tenth[row] = similar.min(axis=1)
            near = similar >= self._tenth[row][:, None] - SAME  # items of the same picture are as near
            self._found.setdefault(name, []).extend(near.mean(axis=1).tolist())

    def error(self, name: str, pool: Pool, coded: Floats) -> None:
        error = float(np.square(pool.phi - coded).sum(1).mean())
        self._errors.setdefault(name, []).append((len(pool.phi), error))

    def table(self) -> dict[str, Any]:
        """For each system: mean of the rows, share of exact search, error, each row."""
        out: dict[str, Any] = {}
        for name, rows in self._rows.items():
            mean, exact = (mean_over_rows(r)["hit@5"] for r in (rows, self._rows["exact"]))
            figures: dict[str, Any] = {"hit@5": round(mean, 4), "share of exact": round(mean / exact, 4)}
            figures["nearest found"] = round(float(np.mean(self._found[name])), 4)
            base = name.removesuffix(", cosine").removesuffix(", product")
            if base in self._errors:
                counts, errors = zip(*self._errors[base], strict=True)
                figures["squared error"] = round(float(np.average(errors, weights=counts)), 5)
            figures["rows"] = {f"{r.row.dataset} {r.row.task}": round(r.mean("hit@5"), 4) for r in rows}
            out[name] = figures
        return out


def measure(
    pools: Iterator[Pool], setting: str, systems: Mapping[str, Fit], scores: Mapping[str, Sequence[str]]
) -> dict[str, Any]:
    """Figures of the systems; `scores` names the scores of those that are not scored by cosine alone."""
    figures = Figures(setting)
    known: dict[bytes, dict[str, Floats]] = {}  # several rows have the same pool
    for pool in pools:
        figures.add("exact", pool, lambda q, pool=pool: _best(q, pool.phi))  # type: ignore[misc]
        coded = known.setdefault(blake2b(pool.phi.tobytes()).digest(), {})
        for name, fit in systems.items():
            if name not in coded:
                coded[name] = fit(pool.phi, pool.modality)
            figures.error(name, pool, coded[name])
            for score in scores.get(name, ["cosine"]):
                vectors = unit(coded[name]) if score == "cosine" else coded[name]
                label = f"{name}, {score}"
                figures.add(label, pool, lambda q, vectors=vectors: _best(q, vectors))  # type: ignore[misc]
            if isinstance(fit, Fitted) and name == "genius":
                figures.add("genius, lookup", pool, lookup(pool, fit))
    return figures.table()


def _best(queries: Floats, items: Floats) -> Ints:
    return nearest(queries, torch.from_numpy(np.ascontiguousarray(items)), DEPTH).rows


def compare(pools: Callable[[str], Iterator[Pool]], setting: str, seeds: int) -> dict[str, Any]:
    """Figures of all systems on the test split, each scored in both ways; PQ and OPQ are fitted once."""
    tables = []
    for seed in range(seeds):
        systems: dict[str, Fit] = {"genius": Fitted(replace(OURS, seed=seed))}
        if seed == 0:
            systems |= {"faiss PQ": product_codes, "faiss OPQ": rotated_codes}
        systems["faiss RQ"] = partial(residual_codes, seed=seed)
        systems["faiss RQ, by modality"] = partial(residual_codes_by_modality, seed=seed)
        tables.append(measure(pools("test"), setting, systems, dict.fromkeys(systems, BOTH)))
    return {name: over_seeds([table[name] for table in tables if name in table]) for name in tables[0]}


def over_seeds(tables: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Means of a system's figures over seeds, and between which values its share of exact search lay."""
    means: dict[str, Any] = {
        name: round(float(np.mean([table[name] for table in tables])), 5)
        for name in tables[0]
        if name != "rows"
    }
    if len(tables) > 1:
        shares = [table["share of exact"] for table in tables]
        means |= {"seeds": len(tables), "share of exact, least and largest": [min(shares), max(shares)]}
    rows = {
        row: round(float(np.mean([table["rows"][row] for table in tables])), 4) for row in tables[0]["rows"]
    }
    return means | {"rows": rows}


def choose(pools: Callable[[str], Iterator[Pool]], setting: str, seeds: int) -> dict[str, Any]:
    """Figures of other options on the val split, and of FAISS RQ."""
    tables = []
    for seed in range(seeds):
        ours = replace(OURS, seed=seed)
        choices: dict[str, Fit] = {
            "genius": Fitted(ours),
            "genius, one set of codebooks": Fitted(replace(ours, by_modality=False)),
            "faiss RQ": partial(residual_codes, seed=seed),
            "faiss RQ, by modality": partial(residual_codes_by_modality, seed=seed),
        }
        if seed == 0:
            choices |= {
                "genius, no refinement": Fitted(replace(ours, rounds=0)),
                "genius, 10 rounds of refinement": Fitted(replace(ours, rounds=10)),
                "genius, refined as a whole": refined_as_a_whole,
                "genius, beam 1": Fitted(replace(ours, code_beam=1)),
                "genius, modalities not told apart": Fitted(ours, gap=True),
            }
        tables.append(measure(pools("val"), setting, choices, {}))
    return {name: over_seeds([table[name] for table in tables if name in table]) for name in tables[0]}


class WithTrainItems:
    """A dataset whose pools of all rows have some items of train in addition."""

    def __init__(self, dataset: Dataset, count: int) -> None:
        self._dataset = dataset
        every = list(dataset.pool("train"))
        drawn = np.sort(np.random.default_rng(0).permutation(len(every))[:count])
        self._more = [every[number] for number in drawn]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dataset, name)

    def pool(self, split: str, row: Row | None = None) -> Iterator[Item]:
        """The items of the split, then those of train."""
        seen = set()
        for item in self._dataset.pool(split, row):
            seen.add(item.id)
            yield item
        yield from (item for item in self._more if row is None and item.id not in seen)


def chosen(names: str, known: Sequence[str], option: str) -> list[str]:
    """The names in a list with commas, if all are known."""
    found = names.split(",")
    if unknown := [name for name in found if name not in known]:
        raise BadInput(f"{option} {','.join(unknown)}: choose of {', '.join(known)}")
    return found


def sources_of(
    vectors: Sequence[str], dataset: Dataset, data: Path, features: Path | None, cache: Path
) -> dict[str, Source]:
    """The pools of the vectors that are asked for, by what a result calls them."""
    sources: dict[str, Source] = {}
    if "mini" in vectors:
        embedder = Embedder(EncoderOnly(Model.load("mini").encoder), cache)
        sources["mini"] = lambda setting: lambda split: mini_pools(dataset, embedder, split, setting)
    if "clip" in vectors and features is not None:
        files = features.with_suffix(".safetensors"), features.with_suffix(".names.txt")
        table = read_vectors(*files, "image_embeds")
        sources["CLIP ViT-B/16, images"] = lambda setting: (
            lambda split: clip_pools(dataset, data, table, split, setting)
        )
    if not sources:
        raise BadInput("--vectors clip needs --features")
    return sources


def merged(files: Sequence[Path]) -> dict[str, Any]:
    """The results of several runs as one, with what each of them was `measured_by`.

    They have to be of one commit and one set of options, and no two of them may hold the same table.
    """
    result: dict[str, Any] = {"measured_by": []}
    for file in files:
        part = json.loads(file.read_text(encoding="utf-8"))
        result["measured_by"].append({key: part.pop(key) for key in MADE_BY if key in part})
        made_by = result["measured_by"][0], result["measured_by"][-1]
        if made_by[0].get("commit") != made_by[1].get("commit"):
            raise BadInput(f"{file} was measured at another commit than {files[0]}")
        _add(result, part, str(file))
    return result


def _add(result: dict[str, Any], part: Mapping[str, Any], where: str) -> None:
    """Add the tables of `part`, which have the figures of exact search in them, to those of `result`."""
    for key, value in part.items():
        if key not in result:
            result[key] = value
        elif isinstance(value, dict) and "exact" not in value:
            _add(result[key], value, f"{where}: {key}")
        elif isinstance(value, dict) or result[key] != value:
            raise BadInput(f"{where}: {key} is in another file, too, or differs")


def main(
    data: Path | None = None,
    features: Path | None = None,
    cache: Path = Path("runs/fit-cache"),
    seeds: int = 3,
    parts: str = "test,val",
    train_items: int = 0,
    vectors: str = ",".join(VECTORS),
    settings: str = ",".join(SETTINGS),
    merge: list[Path] | None = None,
) -> Iterator[dict[str, Any]]:
    if merge:
        yield merged(merge)
        return
    if data is None:
        raise BadInput("--data is missing: the folder of the benchmark")
    dataset = open_dataset("mbeir", data)
    if train_items:
        dataset = WithTrainItems(dataset, train_items)
    result: dict[str, Any] = {
        "metric": "hit@5, mean of the rows",
        "bytes": BYTES,
        "options": str(OURS),
        "seeds": seeds,
    }
    sources = sources_of(chosen(vectors, VECTORS, "--vectors"), dataset, data, features, cache)
    measures: dict[str, Callable[..., dict[str, Any]]] = {"test": compare, "val": choose}
    for part in chosen(parts, tuple(measures), "--parts"):
        for name, pools in sources.items():
            for setting in chosen(settings, SETTINGS, "--settings"):
                if part == "val" and setting != SETTINGS[0]:  # in small pools little is lost
                    continue
                of_source = result.setdefault(name, {}).setdefault(part, {})
                of_source[setting] = measures[part](pools(setting), setting, seeds)
                yield result


if __name__ == "__main__":
    run(main)
