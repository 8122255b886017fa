"""The model folder inside an index whose codes are fitted to its items.

    fit-000001/model.toml              the encoder (by name, with its fingerprint), shapes, search settings
    fit-000001/quantizer.safetensors   the codebooks
    fit-000001/decoder.safetensors     where one was trained on labelled pairs

It is a complete model: `genius index --model INDEX/fit-000001` makes other indexes with the same codes.
Number 0 has the modality as its only code: a search then compares the query with every vector, which is
exact.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

from genius.errors import IndexCorrupt, ModelMismatch
from genius.files import write_folder
from genius.model_toml import NAME as MODEL_TOML
from genius.model_toml import read_model_toml, write_model_toml
from genius.types import Modality

if TYPE_CHECKING:
    from genius.decode.model import Decoder
    from genius.quantize.model import Quantizer
    from genius.store.index import Index

ALL = 2**31 - 1  # candidates: every one
EXACT_SEARCH = {"method": "lookup", "leaves": ALL, "reranked": ALL}
FITTED_SEARCH = {"method": "lookup", "beam": 200}  # on val 50 lose 0.1 of the nearest items (docs/scale.md)
GENERATED_SEARCH = {"method": "generate"}  # where the decoder has found more than lookup
QUANTIZER = "quantizer.safetensors"
_FOLDER = re.compile(r"fit-(\d{6,})")


@dataclass(frozen=True, slots=True)
class FitRecord:
    """What an index stores about its last fit, as plain values."""

    number: int  # 0: no codes yet, search is exact
    encoder: str  # fingerprint of the encoder
    made_by: str  # fingerprint of the model that made the index, if its codes were trained; else ""
    items: int = 0  # in the index when it was fitted
    at: str = ""  # the time, ISO 8601, UTC
    distortion: float = 0.0  # 1 - cosine of embedding and its codes, mean over a sample
    digest: str = ""  # of the codebooks
    from_pairs: bool = False  # whether something was learned from labelled pairs

    def as_setting(self) -> dict[str, Any]:
        """Plain values for the index."""
        return asdict(self)


def fit_name(number: int) -> str:
    """Name of the folder of a fit."""
    return f"fit-{number:06d}"


def write_fit(
    index_folder: Path,
    number: int,
    encoder: Mapping[str, Any],
    quantizer: Quantizer,
    search: Mapping[str, Any],
    decoder: Decoder | None = None,
) -> Path:
    """Write the model folder of a fit into an index; it appears whole, and nothing refers to it yet."""
    from genius.quantize.model import save_quantizer

    folder = index_folder / fit_name(number)
    shutil.rmtree(folder, ignore_errors=True)  # of a fit that was never committed
    with write_folder(folder) as partial:
        tables = {"encoder": encoder, "quantizer": save_quantizer(quantizer, partial)}
        if decoder is not None:
            from genius.decode.weights import save_decoder

            tables["decoder"] = save_decoder(decoder, partial)
        write_model_toml(partial, {**tables, "search": search})
    return folder


def fit_digest(folder: Path) -> str:
    """What tells whether the codebooks of a fit are as they were written."""
    return blake2b((folder / QUANTIZER).read_bytes(), digest_size=16).hexdigest()


def encoder_of(index: Index) -> dict[str, Any] | None:
    """The table `encoder` that an earlier fit has written; None if there was none."""
    fit = index.settings.get("fit")
    if not fit:
        return None
    own = Path(index.model_source)
    for folder in (
        own,
        *sorted(index.folder.glob("fit-*"), reverse=True),
    ):  # the last fit but one is kept, too
        with suppress(ModelMismatch):
            table = read_model_toml(folder).get("encoder", {})
            if table.get("fingerprint") == fit["encoder"]:
                return table
    raise IndexCorrupt(
        f"{own / MODEL_TOML}, which names the encoder of this index, is damaged or gone: put it back from a "
        "backup, or make a new index with `genius index PATH --to NEW_FOLDER --encoder NAME`"
    )


def unfitted(dim: int) -> Quantizer:
    """A quantizer whose only code is the modality."""
    import torch

    from genius.quantize.model import Quantizer

    quantizer = Quantizer(dim, (len(Modality),), fusion="sum")
    quantizer.residual.vectors.copy_(torch.eye(len(Modality), dim))
    return quantizer.eval().requires_grad_(False)


def delete_older(index_folder: Path, number: int) -> None:
    """Delete all fits but this one and the last: a process that opened the index earlier may load that."""
    for entry in index_folder.iterdir():
        found = _FOLDER.fullmatch(entry.name)
        if found and int(found[1]) < number - 1:
            with suppress(OSError):
                shutil.rmtree(entry)
