"""Codebooks fitted to a collection: from its embeddings alone, without queries or labels.

Level 0 is the mean of each modality, so a gap between the modalities is removed before the first code. The
levels after it are k-means of the residuals, refined jointly (`genius.quantize.refine`). Items are encoded
with a beam. Modalities with enough items get their own codebooks, fitted to these items alone: images vary in
other directions than texts, and level 0 already tells which codebooks a code belongs to. Fitting uses a
sample, so its memory and time do not grow with the collection; encoding reads items in chunks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from genius.errors import BadInput
from genius.quantize.codebooks import init_codebooks
from genius.quantize.model import Quantizer
from genius.quantize.refine import refine
from genius.quantize.residual import MODALITIES, ResidualQuantizer
from genius.seeding import generator_for

MAX_CODES = 256  # a code is a byte
MIN_CODES = 16
ITEMS_PER_SEED = 64  # vectors for each code that k-means and the first rounds of refinement look at,
LEAST_PER_SEED = 24  # of all modalities together, but of each no fewer than these
KMEANS_ROUNDS = 6
LAST_ROUNDS = 2  # of refinement, on the whole sample
LEAST_ROUNDS, MOST_ROUNDS = 10, 40  # of refinement
LARGE_SAMPLE, LARGE_ROUNDS = 60_000, 8  # from so many items on; two more lower the error by a thousandth
ITEM_ROUNDS = 660_000  # a smaller sample can be looked at more often in the same time
ITEMS_PER_ROUND = 200  # a thousand items are told apart after few rounds
MODALITY_BITS = 2
ITEMS_PER_CODE = 4  # vectors of the sample for each code of a level; fewer, and codes fit single vectors
OWN_ITEMS_PER_CODE = 8  # the same for a modality with codebooks of its own: later items need codes, too


@dataclass(frozen=True, slots=True)
class FitOptions:
    """How codebooks are fitted."""

    item_bytes: int = 15  # bytes of an item's codes, the modality's two bits included
    sample: int = 65_536  # embeddings that the codebooks are fitted to, at most
    rounds: int | None = None  # of refinement, which take most of the time; None: by the sample's size
    code_beam: int = 8
    by_modality: bool = True  # modalities with enough items get codebooks of their own
    seed: int = 0


def fitted_sizes(items: int, item_bytes: int) -> tuple[int, ...]:
    """Codes per level for a collection of `items`: the modality, then as many codes as fit into the bytes.

    15 bytes are two bits, 14 codes of 8 bits and one of 6.
    """
    if item_bytes < 2:
        raise BadInput(f"{item_bytes} bytes an item: level 0 is the modality, so at least 2 are needed")
    codes = MIN_CODES
    while codes < MAX_CODES and items >= 2 * codes * ITEMS_PER_CODE:
        codes *= 2
    return (MODALITIES, *(codes,) * (item_bytes - 1), min(codes, 1 << (8 - MODALITY_BITS)))


def bytes_of(sizes: Sequence[int]) -> int:
    """Bytes that the codes of an item take, if those of a level take as many bits as they need."""
    return -(-sum(max(1, (size - 1).bit_length()) for size in sizes) // 8)


def fit_quantizer(embeddings: Tensor, modality: Tensor, options: FitOptions = FitOptions()) -> Quantizer:  # noqa: B008 (frozen)
    """A quantizer without fusion parameters, fitted to `embeddings` (n, dim) of known `modality` (n,).

    Embeddings are scaled to unit length; only a sample drawn with the seed is used.
    """
    if not len(embeddings):
        raise BadInput("no embeddings to fit codes to: add items first")
    rows = sample_rows(len(embeddings), options, embeddings.device)
    z, modality = F.normalize(embeddings[rows].float(), dim=1), modality[rows]
    if not bool(z.isfinite().all()):
        raise BadInput("NaN or Inf among the embeddings: mend or leave out those items")
    sizes = fitted_sizes(len(z), options.item_bytes)
    own = own_modalities(modality, max(sizes)) if options.by_modality else []
    quantizer = Quantizer(
        z.shape[1],
        sizes,
        fusion="sum",
        codebooks="modality" if own else "common",
        encode_beam=options.code_beam,
    ).to(z.device)
    if own:
        _fit_modalities(quantizer.residual, z, modality, own, options)
    else:
        quantizer.residual.vectors.copy_(_fit(z, modality, sizes, len(z), options).vectors)
    return quantizer.eval().requires_grad_(False)


def own_modalities(modality: Tensor, codes: int) -> list[int]:
    """Modalities that get codebooks of their own, the most common first; none if there is one modality only.

    They have several items for each of the `codes` of a level: codebooks fitted to fewer items overfit, and
    code later items worse than codebooks fitted to all items.
    """
    counts = torch.bincount(modality, minlength=MODALITIES)
    common = counts.argsort(descending=True, stable=True).tolist()
    enough = [kind for kind in common if counts[kind] >= codes * OWN_ITEMS_PER_CODE]
    return enough if int((counts > 0).sum()) > 1 else []


def _fit_modalities(
    codebooks: ResidualQuantizer, z: Tensor, modality: Tensor, own: Sequence[int], options: FitOptions
) -> None:
    """Fit codebooks to each of the modalities `own`.

    Others that have some items get codebooks fitted to all items; those that have none, for items that will
    come, the codebooks of the most common modality, around the mean of all items.
    """
    counts = torch.bincount(modality, minlength=MODALITIES)
    fitted = {}
    for kind in own:
        rows = modality == kind
        fitted[kind] = _fit(z[rows], modality[rows], codebooks.sizes, len(z), options)
    few = [kind for kind in range(MODALITIES) if kind not in own and counts[kind]]
    if few:
        fitted |= dict.fromkeys(few, _fit(z, modality, codebooks.sizes, len(z), options))
    for kind in range(MODALITIES):
        codebooks.set_modality(kind, fitted.get(kind, fitted[own[0]]))
        if not counts[kind]:
            codebooks.codebook(0)[kind] = z.mean(0)


def _fit(
    z: Tensor, modality: Tensor, sizes: Sequence[int], items: int, options: FitOptions
) -> ResidualQuantizer:
    """Common codebooks for z (n, dim) of known modality (n,), which is a part of a sample of `items`."""
    codebooks = ResidualQuantizer(z.shape[1], sizes).to(z.device)
    generator = generator_for(z.device, options.seed, "fit")
    looked_at = max(sizes) * max(LEAST_PER_SEED, ITEMS_PER_SEED * len(z) // items)
    few = torch.randperm(len(z), generator=generator, device=z.device)[:looked_at]
    init_codebooks(codebooks, z[few], modality[few], generator, KMEANS_ROUNDS, seeding="random")
    rounds = refinement_rounds(items) if options.rounds is None else options.rounds
    last = min(rounds, LAST_ROUNDS) if len(few) < len(z) else 0
    for rows, some in ((few, rounds - last), (torch.arange(len(z), device=z.device), last)):
        if some:
            refine(
                codebooks, z[rows], modality[rows],
                rounds=some, beam=options.code_beam, ordered=True, seed=options.seed,
            )  # fmt: skip
    return codebooks


def refinement_rounds(items: int) -> int:
    """Rounds of refinement for a sample of `items`: most for some thousands."""
    if items >= LARGE_SAMPLE:
        return LARGE_ROUNDS
    most = min(MOST_ROUNDS, ITEM_ROUNDS // max(items, 1), items // ITEMS_PER_ROUND)
    return max(LEAST_ROUNDS, most)


def sample_rows(count: int, options: FitOptions, device: torch.device | str = "cpu") -> Tensor:
    """Rows of `count` embeddings that a fit looks at, ascending: all of them, or a random sample."""
    if count <= options.sample:
        return torch.arange(count, device=device)
    drawn = torch.randperm(count, generator=generator_for("cpu", options.seed, "fit sample"))
    return drawn[: options.sample].sort().values.to(device)
