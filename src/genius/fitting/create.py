"""An index for an encoder without trained codes: codes are fitted to the items once there are enough."""

from __future__ import annotations

from pathlib import Path

from genius.encode.base import CountsTokens, load_encoder
from genius.errors import BadInput, IndexMismatch
from genius.files import make_folder
from genius.fitting.folder import (
    EXACT_SEARCH,
    FitRecord,
    encoder_of,
    fit_digest,
    fit_name,
    unfitted,
    write_fit,
)
from genius.model import MODELS, model_fingerprint
from genius.model_toml import NAME as MODEL_TOML
from genius.store.connection import INDEX_FILE
from genius.store.index import Index

VECTORS = "vectors"  # the encoder of embeddings that were made elsewhere


def create_index(
    folder: Path,
    encoder: str | Path,
    dim: int | None = None,
    device: str = "cpu",
    *,
    split_texts: bool = False,
) -> None:
    """Make an empty index in `folder` whose items are embedded by `encoder`.

    That is a hub name, a folder of transformers or sentence-transformers, or `vectors` for embeddings of
    width `dim` that come with the items. With `split_texts`, long texts are indexed in passages.
    """
    if (folder / INDEX_FILE).exists():
        raise BadInput(f"{folder} holds an index already: open it, or choose another folder")
    kind, source = _identify(encoder, dim)
    loaded = load_encoder(kind, source, device)
    if split_texts and not isinstance(loaded, CountsTokens):
        raise BadInput(f"{encoder} does not say how much of a text it reads: leave out --split-texts")
    table = {"name": kind, "source": source, "fingerprint": loaded.fingerprint, "instructions": False}
    quantizer = unfitted(loaded.dim)
    make_folder(folder)
    written = write_fit(folder, 0, table, quantizer, EXACT_SEARCH)
    record = FitRecord(0, loaded.fingerprint, "", digest=fit_digest(written))
    Index.create(
        folder,
        model=fit_name(record.number),
        fingerprint=model_fingerprint(loaded.fingerprint, quantizer, written),
        sizes=quantizer.sizes,
        dim=loaded.dim,
        notes={"search": EXACT_SEARCH, **({"split_texts": True} if split_texts else {})},
        fit=record.as_setting(),
    )


def require_encoder(index: Index, encoder: str | Path) -> None:
    """Raise IndexMismatch unless the items of the index are embedded by this encoder."""
    table = encoder_of(index) or {}
    name = table.get("source") or table.get("model")
    if table.get("name") == VECTORS:
        name = VECTORS
    given = str(encoder)
    same = given == name or str(name).startswith(f"{given}@") or str(Path(given).absolute()) == name
    if not same and not (table.get("source") and Path(given).is_dir() and str(Path(given).resolve()) == name):
        raise IndexMismatch(
            f"{index.folder} was made with {name or index.settings['model']}, not with {given}: leave "
            f"--encoder out, or make another index with `genius index PATH --to NEW_FOLDER --encoder {given}`"
        )


def _identify(encoder: str | Path, dim: int | None) -> tuple[str, str]:
    """Kind and source of the encoder."""
    if str(encoder) == VECTORS:
        if dim is None or dim < 1:
            raise BadInput("vectors made elsewhere: say how wide they are (dim=512)")
        return VECTORS, str(dim)
    if dim is not None:
        raise BadInput(f"dim is for vectors made elsewhere; {encoder} has a width of its own: leave it out")
    if any((folder / MODEL_TOML).is_file() for folder in (MODELS / str(encoder), Path(encoder))):
        raise BadInput(
            f"{encoder} is a model with codes of its own, not an encoder alone: use --model {encoder}"
        )
    from genius.encode.auto import identify

    return identify(encoder)
