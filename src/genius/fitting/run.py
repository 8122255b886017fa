"""Fitting the codes of an index to its items, from their stored vectors: no images, texts or labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from genius.data.report import Report
from genius.errors import BadInput
from genius.fitting.due import fit_state
from genius.fitting.folder import (
    FITTED_SEARCH,
    GENERATED_SEARCH,
    FitRecord,
    delete_older,
    fit_digest,
    fit_name,
    write_fit,
)
from genius.fitting.hints import HintOptions, HintReport, HintResult, learn_from_pairs, require_enough
from genius.fitting.pairs import EmbeddedPairs, LabelledPairs, StoredVectors, embed_pairs, read_pairs
from genius.model import Model, model_fingerprint
from genius.model_toml import read_model_toml
from genius.quantize.fit import FitOptions, bytes_of, fit_quantizer, sample_rows
from genius.store.index import Index
from genius.store.recoding import recode, require_vectors
from genius.store.records import Codes, RecordBatch

if TYPE_CHECKING:
    from genius.quantize.model import Quantizer
    from genius.retrieval_model import RetrievalModel


@dataclass(frozen=True, slots=True)
class FitResult:
    """What a fit did."""

    number: int
    items: int
    sizes: tuple[int, ...]
    bytes_per_item: int
    distortion: float  # 1 - cosine of embedding and its codes, mean over a sample
    distortion_before: float | None  # None: there were no codes
    hints: HintReport | None = None  # what labelled pairs have added


def fit(
    index: Index,
    load_model: Callable[[], RetrievalModel],
    *,
    item_bytes: int | None,
    pairs: str | Path | LabelledPairs | None,
    decoder: bool,
    seed: int,
    report: Report,
    progress: Callable[[str, int], None] | None,
) -> FitResult:
    """As `Engine.fit`. The model is loaded where queries are embedded, and for the first fit of its index."""
    require_vectors(index)
    if decoder and pairs is None:
        raise BadInput("a decoder learns from labelled pairs: give some (--pairs FILE, or --pairs captions)")
    options = FitOptions(seed=seed) if item_bytes is None else FitOptions(item_bytes, seed=seed)
    encoder = encoder_of(index)
    if encoder is None:
        model = load_model()
        if not isinstance(model, Model):
            raise BadInput("only a model that is loaded by name or folder can be fitted to an index")
        encoder = encoder_table(model)
    embedded = None
    if pairs is not None:
        some = read_pairs(pairs, index, report) if isinstance(pairs, str | Path) else pairs
        embedded = embed_pairs(index, load_model(), some, report)
    return fit_index(index, encoder, options, embedded, decoder=decoder, progress=progress)


def fit_index(
    index: Index,
    encoder: Mapping[str, Any],
    options: FitOptions,
    pairs: EmbeddedPairs | None = None,
    *,
    decoder: bool = False,
    progress: Callable[[str, int], None] | None = None,
) -> FitResult:
    """Learn codebooks from the vectors of an index and give every item its new codes.

    `encoder` is the table of model.toml that says what embeds queries. Labelled `pairs` tune the codes and,
    with `decoder`, teach one; what a held-out part of them finds no better is dropped. The caller holds
    `index.writing()`; `progress` is told what is being done, and of how many items.
    """
    require_vectors(index)
    if pairs is not None:
        require_enough(pairs.rows)  # codes take minutes to learn
    tell = progress or (lambda what, items: None)
    rows, modality = _rows(index)
    if not len(rows):
        raise BadInput(f"{index.folder} is empty, so there is nothing to fit codes to: add items first")
    assert index.dim is not None
    chosen = sample_rows(len(rows), options).numpy()
    tell("learning codes from items", len(chosen))
    sample = torch.from_numpy(index.truth.vectors(rows[chosen], index.dim).astype(np.float32))
    kinds = torch.from_numpy(modality[chosen].astype(np.int64))
    before = fit_state(index).distortion_now
    quantizer, learned = fit_quantizer(sample, kinds, options), None
    if pairs is not None:
        learned = _learn(index, quantizer, rows, modality, pairs, decoder, options.seed, tell)
        quantizer = learned.quantizer or quantizer
    kept = None if learned is None else learned.decoder
    search = FITTED_SEARCH if kept is None else GENERATED_SEARCH
    record = FitRecord(
        number=1 + int((index.settings.get("fit") or {}).get("number", 0)),
        encoder=encoder["fingerprint"],
        made_by=made_by(index),
        items=len(rows),
        at=datetime.now(UTC).isoformat(timespec="seconds"),
        distortion=round(_distortion(quantizer, sample, kinds), 6),
        from_pairs=learned is not None and (learned.quantizer is not None or kept is not None),
    )
    folder = write_fit(index.folder, record.number, encoder, quantizer, search, kept)
    record = replace(record, digest=fit_digest(folder))
    done = 0

    def encode(batch: RecordBatch) -> Codes:
        nonlocal done
        assert batch.vectors is not None
        done += len(batch)
        tell("coding items", done)
        return quantizer.codes_of(batch.vectors.astype(np.float32), batch.modality)

    fingerprint = model_fingerprint(record.encoder, quantizer, folder)
    commit(index, record, fingerprint, quantizer.sizes, encode, search)
    return FitResult(
        record.number,
        len(rows),
        quantizer.sizes,
        bytes_of(quantizer.sizes),
        record.distortion,
        before,
        None if learned is None else learned.report,
    )


def _learn(
    index: Index,
    quantizer: Quantizer,
    rows: NDArray[np.int64],
    modality: NDArray[np.uint8],
    pairs: EmbeddedPairs,
    decoder: bool,
    seed: int,
    tell: Callable[[str, int], None],
) -> HintResult:
    positives = [np.searchsorted(rows, own).tolist() for own in pairs.rows]
    return learn_from_pairs(
        quantizer,
        StoredVectors(index, rows),
        modality,
        pairs.vectors,
        positives,
        HintOptions(seed=seed),
        decoder=decoder,
        progress=lambda what: tell(what, len(positives)),
    )


def commit(
    index: Index,
    record: FitRecord,
    fingerprint: str,
    sizes: tuple[int, ...],
    encode: Callable[[RecordBatch], Codes],
    search: Mapping[str, Any],
) -> None:
    """Make the model that `write_fit` has put into the index the model of the index."""
    settings = {
        "model": fit_name(record.number),
        "fingerprint": fingerprint,
        "notes": {**index.settings["notes"], "search": dict(search)},
        "fit": record.as_setting(),
    }
    recode(index, encode, sizes, settings)
    delete_older(index.folder, record.number)


def made_by(index: Index) -> str:
    """Fingerprint of the model whose codes the index had before its first fit; "" if it had none."""
    fit = index.settings.get("fit")
    return str(fit["made_by"] if fit else index.settings["fingerprint"])


def encoder_of(index: Index) -> dict[str, Any] | None:
    """The table `encoder` that an earlier fit has written; None if there was none."""
    if not index.settings.get("fit"):
        return None
    return read_model_toml(Path(index.model_source))["encoder"]


def encoder_table(model: Model) -> dict[str, Any]:
    """The table `encoder` of a model folder that uses the encoder of `model`."""
    table = dict(model.encoder_settings)
    own = {} if table.get("source") else {"model": model.name}
    return {**table, **own, "fingerprint": model.encoder.fingerprint}


def _rows(index: Index) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Row numbers and modalities of all items."""
    batches = list(index.truth.batches(index.levels, None))
    if not batches:
        return np.zeros(0, np.int64), np.zeros(0, np.uint8)
    every = RecordBatch.join(batches)
    return every.rows, every.modality


@torch.no_grad()
def _distortion(quantizer: Quantizer, vectors: torch.Tensor, modality: torch.Tensor) -> float:
    """1 - cosine of vectors and their codes, mean over a sample."""
    few = torch.arange(0, len(vectors), max(1, len(vectors) // 4096))
    vectors = torch.nn.functional.normalize(vectors[few], dim=1)
    found = quantizer.directions(quantizer.encode(vectors, modality[few]))
    return float(1 - (found * vectors).sum(1).mean())
