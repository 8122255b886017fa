"""The authors' published quantizer, in and out.

Theirs has the fusion under `encoder.` and vector-quantize-pytorch's ResidualVQ under `residual_rq.`; level 0
stands a second time under `vq.`. Sizes come from the tensors; what does not fit is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from genius.errors import ModelMismatch
from genius.model_toml import set_table
from genius.quantize.fusion import PRESETS
from genius.quantize.model import Quantizer, save_quantizer
from genius.weights import check_fit, read_pickled_weights

FUSION = "encoder."
LEVEL = "residual_rq.layers.{}._codebook."
LEVEL_0_COPY = "vq._codebook."  # level 0 is stored twice
OTHERS = ("clip_model.",)  # the encoder, which `genius convert clip-sf` reads
WHERE = "the published quantizer"


def convert_quantizer(source: str | Path, to: Path) -> None:
    """The published quantizer file `source` into the model folder `to`: weights and a table of model.toml."""
    quantizer = quantizer_from_released(read_pickled_weights(Path(source)))
    set_table(to, "quantizer", save_quantizer(quantizer, to))


def quantizer_to_released(quantizer: Quantizer) -> dict[str, Tensor]:
    """Fusion and codebooks under the published names, with the averages that training them further needs."""
    tensors = {FUSION + name: tensor for name, tensor in quantizer.fusion.state_dict().items()}
    for level, book in enumerate(quantizer.residual.codebooks()):
        for prefix in (LEVEL.format(level), LEVEL_0_COPY)[: 2 if level == 0 else 1]:
            tensors[f"{prefix}embed"] = book[None]
            tensors[f"{prefix}embed_avg"] = book[None]
            tensors[f"{prefix}cluster_size"] = torch.ones(1, len(book))
            tensors[f"{prefix}initted"] = torch.tensor(True)
    return tensors


def quantizer_from_released(tensors: Mapping[str, Tensor]) -> Quantizer:
    """A quantizer (in eval mode) with the weights published under `tensors`.

    Level 0 of the published model was learned without labels: an item gets the nearest of its code vectors,
    and which of them stands for which modality is to be seen from the items themselves.
    """
    found = {name: _flag(name, tensor) for name, tensor in tensors.items() if not name.startswith(OTHERS)}
    if not any(name.startswith(LEVEL_0_COPY) for name in found):  # the copy may be left out, as a whole
        prefix = LEVEL.format(0)
        found |= {LEVEL_0_COPY + n.removeprefix(prefix): t for n, t in found.items() if n.startswith(prefix)}
    books: list[Tensor] = []
    while (book := found.get(LEVEL.format(len(books)) + "embed")) is not None:
        books.append(book)
    if not books or any(book.ndim != 3 or book.shape[0] != 1 for book in books):
        shapes = [tuple(book.shape) for book in books]
        raise ModelMismatch(
            f"{WHERE}: codebooks of shapes {shapes} instead of (1, codes, dim), one per level"
        )
    dim, sizes = books[0].shape[2], [book.shape[1] for book in books]
    quantizer = Quantizer(dim, sizes, fusion=_preset(found), modality="nearest").eval()
    check_fit(quantizer_to_released(quantizer), found, WHERE)
    untrained = [n for n, tensor in found.items() if n.endswith(".initted") and not bool(tensor.all())]
    if untrained:
        raise ModelMismatch(f"{WHERE}: {', '.join(untrained)} is false: these codebooks were never trained")
    if not torch.equal(found[f"{LEVEL_0_COPY}embed"], books[0]):
        raise ModelMismatch(
            f"{WHERE}: {LEVEL_0_COPY}embed differs from {LEVEL.format(0)}embed: which one is level 0?"
        )
    quantizer.fusion.load_state_dict(
        {n.removeprefix(FUSION): t for n, t in found.items() if n.startswith(FUSION)}
    )
    quantizer.residual.vectors.copy_(torch.cat([book[0] for book in books]))
    return quantizer


def _flag(name: str, tensor: Tensor) -> Tensor:
    """`initted` has shape (1,) until vector-quantize-pytorch 1.27 and is a scalar since; others unchanged."""
    return tensor.reshape(()) if name.endswith(".initted") and tensor.numel() == 1 else tensor


def _preset(found: Mapping[str, Tensor]) -> str:
    """The name of the fusion whose sizes the tensors have."""
    weight = found.get(f"{FUSION}combiner_layer.weight")
    if weight is None or weight.ndim != 2:
        raise ModelMismatch(f"{WHERE}: no matrix named {FUSION}combiner_layer.weight")
    joint, parts = weight.shape
    for name, sizes in PRESETS.items():
        if sizes == (parts // 2, joint):
            return name
    raise ModelMismatch(
        f"{WHERE}: a fusion of sizes {parts // 2} and {joint} is none of {PRESETS}: add a preset"
    )
