"""A model folder: encoder, quantizer and decoder, with the search settings chosen on val.

model.toml              which encoder, the shapes, the search settings chosen on val
encoder.safetensors …   the encoder, if it is `mini` or was trained here; others are named by their source
quantizer.safetensors   fusion and codebooks
decoder.safetensors     the decoder
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from genius.confidence import Calibration
from genius.data.instructions import clean, query_text
from genius.encode.base import Array, CountsTokens, Encoder, FusingEncoder, Parts, encode_parts, load_encoder
from genius.errors import ModelMismatch, ModelNotFound
from genius.model_toml import NAME as SETTINGS
from genius.model_toml import invalid, read_model_toml
from genius.types import Modality

if TYPE_CHECKING:
    from PIL.Image import Image

    from genius.decode.model import Decoder
    from genius.quantize.model import Quantizer

MODELS = Path(__file__).parent / "models"
DECODER = "decoder.safetensors"
MODALITIES = tuple(Modality)


def model_folder(name: str | Path) -> Path:
    """The folder of a model: one that is shipped, by name, or one's own, by path."""
    shipped = MODELS / str(name)
    folder = shipped if (shipped / SETTINGS).is_file() else Path(name)
    if not (folder / SETTINGS).is_file():
        known = ", ".join(sorted(path.parent.name for path in MODELS.glob(f"*/{SETTINGS}")))
        raise ModelNotFound(f"no model {str(name)!r}: give a folder with a {SETTINGS}, or one of: {known}")
    return folder


def read_settings(name: str | Path) -> dict[str, Any]:
    """The model.toml of a model (shipped, or a folder); nothing else is loaded."""
    return read_model_toml(model_folder(name))


@dataclass(frozen=True)
class Model:
    """Everything between an image or text and its codes."""

    name: str
    fingerprint: str  # of all that decides vectors and codes
    encoder: Encoder | FusingEncoder
    quantizer: Quantizer
    lazy_decoder: Decoder | partial[Decoder] | None  # the decoder, or the call that loads it
    search_defaults: Mapping[str, Any]  # chosen on val: method, beam, weights
    encoder_settings: Mapping[str, Any] = field(default_factory=dict)  # the table `encoder` of model.toml
    calibrations: Mapping[str, Calibration] = field(default_factory=dict)  # by `vectors` or `codes`

    @classmethod
    def load(
        cls,
        name: str | Path = "mini",
        device: str = "cpu",
        loaded: Encoder | FusingEncoder | None = None,
    ) -> Self:
        """The model `name` (shipped, or a folder), ready to use; its encoder may be `loaded` already."""
        from genius.encode.pretrained import known_device
        from genius.quantize.model import load_quantizer

        known_device(device)
        folder, settings = model_folder(name), read_settings(name)
        try:
            known = loaded is not None and settings["encoder"].get("fingerprint") == loaded.fingerprint
            encoder = loaded if known and loaded else _load_encoder(folder, settings["encoder"], device)
            quantizer = load_quantizer(folder, settings["quantizer"], device)
            decoder = settings.get("decoder")
            _check_parts_fit(folder, encoder, quantizer, decoder)
        except (KeyError, TypeError) as error:
            raise invalid(folder / SETTINGS, error) from None
        return cls(
            name=str(name),
            fingerprint=model_fingerprint(encoder.fingerprint, quantizer, folder),
            encoder=encoder,
            quantizer=quantizer,
            lazy_decoder=None if decoder is None else partial(_load_decoder, folder, decoder, device),
            search_defaults=settings.get("search", {}),
            encoder_settings=settings["encoder"],
            calibrations=_calibrations(settings),
        )

    @cached_property
    def decoder(self) -> Decoder | None:
        """The decoder, loaded on first use; lookup search never uses it."""
        return self.lazy_decoder() if isinstance(self.lazy_decoder, partial) else self.lazy_decoder

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Codes per level."""
        return tuple(self.quantizer.sizes)

    @property
    def dim(self) -> int:
        """Width of the embeddings."""
        return int(self.quantizer.dim)

    def codebooks(self) -> list[NDArray[np.float32]]:
        """The code vectors of each level, (sizes[level], dim), or after level 0 those of each modality."""
        return [np.asarray(book.cpu(), dtype=np.float32) for book in self.quantizer.residual.codebooks()]

    @property
    def levels(self) -> int:
        """How many codes an item has."""
        return len(self.sizes)

    @cached_property
    def modality_codes(self) -> dict[Modality, int]:
        """The code of level 0 that stands for each modality; none where level 0 is something else."""
        tells = self.quantizer.residual.modality != "none"
        return {modality: code for code, modality in enumerate(MODALITIES)} if tells else {}

    def embed_items(self, images: Sequence[Image | None], texts: Sequence[str | None]) -> Parts:
        """Vectors of items; texts are cleaned as in training."""
        return encode_parts(self.encoder, images, [clean(text) if text else None for text in texts])

    @property
    def text_limit(self) -> CountsTokens | None:
        """What counts the tokens of texts; None if the encoder does not say how many it reads."""
        return self.encoder if isinstance(self.encoder, CountsTokens) else None

    def embed_queries(
        self, images: Sequence[Image | None], texts: Sequence[str | None], instructions: Sequence[str]
    ) -> Parts:
        """Vectors of queries; each text follows its instruction, if the encoder was trained with them."""
        if not self.encoder_settings.get("instructions", True):
            return self.embed_items(images, texts)
        full_texts = [query_text(*pair) for pair in zip(instructions, texts, strict=True)]
        return encode_parts(self.encoder, images, full_texts)

    def phi(self, parts: Parts) -> Array:
        """The fused embedding that exact search and re-ranking compare, (n, dim)."""
        return parts.phi()

    def z(self, parts: Parts) -> Array:
        """The fusion's output, which is quantized and read by the decoder, (n, dim)."""
        return self.quantizer.z_of(parts.image, parts.text)

    def codes(self, parts: Parts, modalities: Sequence[Modality]) -> NDArray[np.uint16]:
        """The codes of items, (n, levels)."""
        rows = np.array([MODALITIES.index(modality) for modality in modalities], dtype=np.int64)
        return self.quantizer.codes_of(self.z(parts), rows)


def model_fingerprint(encoder: str, quantizer: Quantizer, folder: Path) -> str:
    """Fingerprint of a model; the decoder has no part in it, as stored codes do not depend on it."""
    from genius.quantize.model import FILE

    digest = hashlib.blake2b(encoder.encode(), digest_size=8)
    digest.update(json.dumps(quantizer.shape()).encode())
    digest.update((folder / FILE).read_bytes())
    return digest.hexdigest()


def _load_encoder(folder: Path, table: Mapping[str, Any], device: str) -> Encoder | FusingEncoder:
    """The encoder of a model folder: its own, one by kind and source, or that of another `model`."""
    if "model" in table:
        base = model_folder(table["model"])
        encoder = _load_encoder(base, read_model_toml(base)["encoder"], device)
    else:
        source = table.get("source")
        if source and Path(source).is_absolute() and not Path(source).exists():
            raise ModelNotFound(
                f"the encoder of {folder} is not at {source} any more: put its folder there again, or a link "
                "to where it is now"
            )
        encoder = load_encoder(table["name"], source or folder, device)
    if encoder.fingerprint != table.get("fingerprint", encoder.fingerprint):
        source = table.get("model") or table.get("source")
        raise ModelMismatch(
            f"the encoder {source} is not the one that {folder.parent} was made with: its files have changed "
            f"({table['fingerprint'][:12]}, now {encoder.fingerprint[:12]}). Put the old ones back, or make "
            f"a new index with `genius index PATH --to NEW_FOLDER --encoder {source}`"
        )
    return encoder


def _calibrations(settings: Mapping[str, Any]) -> dict[str, Calibration]:
    """How sure similarities are, by what they are computed from; codes of one's own have no calibration."""
    tables = {name: settings.get(f"confidence_{name}", {}) for name in ("vectors", "codes")}
    if "model" in settings["encoder"] and not tables["vectors"]:  # the same embeddings
        tables["vectors"] = read_settings(settings["encoder"]["model"]).get("confidence_vectors", {})
    found = {name: Calibration.from_table(table) for name, table in tables.items()}
    return {name: calibration for name, calibration in found.items() if calibration is not None}


def _check_parts_fit(
    folder: Path,
    encoder: Encoder | FusingEncoder,
    quantizer: Quantizer,
    decoder: Mapping[str, Any] | None,
) -> None:
    """Raise ModelMismatch if the parts do not fit together; of the decoder, only its config is checked."""
    if encoder.dim != quantizer.dim:
        raise ModelMismatch(
            f"{folder}: the encoder's vectors have width {encoder.dim}, the quantizer wants {quantizer.dim}: "
            "use the encoder it was trained with"
        )
    if decoder is None:
        return
    if (decoder["dim"], tuple(decoder["sizes"])) != (quantizer.dim, tuple(quantizer.sizes)):
        raise ModelMismatch(f"{folder}: decoder and quantizer differ in their codes: train the decoder again")
    from genius.weights import check_readable

    check_readable(folder / DECODER)


def _load_decoder(folder: Path, table: Mapping[str, Any], device: str) -> Decoder:
    from genius.decode.weights import load_decoder

    return load_decoder(folder, table).to(device).eval()
