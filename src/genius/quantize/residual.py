"""Residual quantization: a unit vector z becomes M small integers, the first one its modality (eq. 4-6).

All code vectors lie in one table, level after level, so that the products of a query with every code of every
level, or a moving average of all codebooks, are one operation. Where each modality has codebooks of its own,
the levels after level 0 are there once for each modality. The code of level 0 says which of them an item
uses, so codes take no more bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from genius.errors import BadInput
from genius.quantize.tables import BeamTables

MODALITIES = 3
MODALITY_SOURCES = ("assigned", "nearest", "classifier", "none")  # of the code of level 0
CODEBOOKS = ("common", "modality")  # one for all items at each level, or one for each modality
SCORES_AT_ONCE = 1 << 25  # entries of the score matrix of one chunk: bounds the memory of `encode`


def code_sizes(levels: int, codes: int, modality: str = "assigned") -> tuple[int, ...]:
    """Codes per level: 3 at level 0 and `codes` at the others; no level 0 if `modality` is none."""
    if levels < (2 if modality != "none" else 1):
        raise BadInput(f"{levels} levels: level 0 is the modality, so at least 2 are needed")
    return (codes,) * (levels - 1) if modality == "none" else (MODALITIES, *(codes,) * (levels - 1))


class ResidualQuantizer(nn.Module):
    """The codebooks of all levels, and how the codes of a vector are found.

    `modality` says where the code of level 0 comes from: `assigned` (the caller passes it), `nearest` (the
    nearest code vector, as released), `classifier` (a linear classifier; nothing is subtracted from the
    residual, supplement C.2) or `none` (there is no such level). With `shared`, all other levels use one
    codebook (supplement, Table 6). `codebooks` is `common`, or `modality`: all other levels have a codebook
    for each modality. `encoding` and `weighted` are true for some older fits: with the first, items are
    encoded with other code vectors than they are decoded with; with the second, the files have a metric that
    is not used.
    """

    vectors: Tensor
    row_of_level: Tensor  # (levels,), or by modality (modalities, levels)
    encoding: Tensor | None  # float16, of the shape of `vectors`
    metric: Tensor | None

    def __init__(
        self,
        dim: int,
        sizes: Sequence[int],
        *,
        modality: str = "assigned",
        shared: bool = False,
        codebooks: str = "common",
        encoding: bool = False,
        weighted: bool = False,
    ) -> None:
        super().__init__()
        sizes = tuple(sizes)
        if modality not in MODALITY_SOURCES:
            sources = ", ".join(MODALITY_SOURCES)
            raise BadInput(f"unknown modality {modality!r} for level 0: choose one of {sources}")
        if modality != "none" and sizes[:1] != (MODALITIES,):
            raise BadInput(f"sizes {sizes}: level 0 is the modality and has {MODALITIES} codes")
        if any(not 1 <= size <= 1 << 16 for size in sizes):
            raise BadInput(f"sizes {sizes}: a level has 1 to 65,536 codes")
        first = 0 if modality == "none" else 1
        if shared and len(set(sizes[first:])) > 1:
            raise BadInput(f"sizes {sizes}: levels that share one codebook have one size")
        if codebooks not in CODEBOOKS:
            raise BadInput(f"unknown codebooks {codebooks!r}: choose one of {', '.join(CODEBOOKS)}")
        self.by_modality = codebooks == "modality"
        if self.by_modality and (modality != "assigned" or shared):
            raise BadInput("codebooks by modality need an assigned modality and no shared codebook")
        if encoding and modality != "assigned":
            raise BadInput("code vectors for encoding alone need an assigned modality")
        self.dim, self.sizes, self.modality, self.shared = dim, sizes, modality, shared
        self.first_level = first  # the first level that codes content: 1, or 0 without a modality level
        starts = tuple(accumulate(sizes[:-1], initial=0))
        self.starts = tuple(min(start, starts[first]) for start in starts) if shared else starts
        rows, row_of_level = self.starts[-1] + sizes[-1], torch.tensor(self.starts)
        if self.by_modality:
            others = rows - MODALITIES  # rows of a modality
            shift = others * torch.arange(MODALITIES)[:, None] * (torch.arange(len(sizes)) > 0)
            rows, row_of_level = MODALITIES * (1 + others), row_of_level + shift
        self.register_buffer("vectors", torch.zeros(rows, dim))
        self.register_buffer("row_of_level", row_of_level, persistent=False)
        self.classifier = nn.Linear(dim, MODALITIES) if modality == "classifier" else None
        self.register_buffer("encoding", torch.zeros(rows, dim, dtype=torch.half) if encoding else None)
        self.register_buffer("metric", torch.eye(dim) if weighted else None)

    @property
    def levels(self) -> int:
        """M, how many codes a vector gets."""
        return len(self.sizes)

    def codebook(self, level: int) -> Tensor:
        """The code vectors of a level, (size, dim), or by modality (modalities, size, dim); a view."""
        start, size = self.starts[level], self.sizes[level]
        if self.by_modality and level:
            start -= MODALITIES
            own = self.vectors[MODALITIES:].view(MODALITIES, -1, self.dim)
            return own[:, start : start + size]
        return self.vectors[start : start + size]

    def codebooks(self) -> list[Tensor]:
        """The code vectors of all levels."""
        return [self.codebook(level) for level in range(self.levels)]

    def of_modality(self, modality: int) -> ResidualQuantizer:
        """A quantizer with common codebooks that are a copy of those of one modality."""
        own = ResidualQuantizer(self.dim, self.sizes).to(self.vectors)
        own.vectors.copy_(torch.cat([self.codebook(0), *(book[modality] for book in self.codebooks()[1:])]))
        return own

    def set_modality(self, modality: int, own: ResidualQuantizer) -> None:
        """Take the codebooks of one modality from a quantizer with common codebooks."""
        self.codebook(0)[modality] = own.codebook(0)[modality]
        for level in range(1, self.levels):
            self.codebook(level)[modality] = own.codebook(level)

    @torch.no_grad()
    def encode(self, z: Tensor, modality: Tensor | None = None, beam: int = 1) -> Tensor:
        """Codes of z (n, dim), int64 (n, levels), in chunks: memory does not grow with n.

        `modality` (n,) is needed where it is assigned: that of an item, or the one a query asks for. `beam`
        partial codings are kept from level to level; 1 is the plain greedy search of eq. 5, more find codes
        whose sum is nearer to z.
        """
        self._check(z, modality)
        if self.encoding is not None:
            return self._by_encoding().encode(z, modality, beam)
        codes = torch.empty(len(z), self.levels, dtype=torch.long, device=z.device)
        if self.by_modality and modality is not None:
            for kind in range(MODALITIES):
                items = (modality == kind).nonzero().squeeze(1)
                if not len(items):
                    continue
                codes[items] = self.of_modality(kind).encode(z[items], modality[items], beam)
            return codes
        chunk = max(1, SCORES_AT_ONCE // (max(self.sizes) * beam))
        tables = BeamTables(self) if beam > 1 and BeamTables.worthwhile(self, len(z)) else None
        for start in range(0, len(z), chunk):
            rows = slice(start, start + chunk)
            part = z[rows].to(self.vectors)
            known = None if modality is None else modality[rows]
            if tables is not None:
                codes[rows] = tables.encode(
                    part, self.level_zero(part, known) if self.first_level else None, beam
                )
            else:
                codes[rows] = self._greedy(part, known) if beam == 1 else self._beam(part, known, beam)
        return codes

    def decode(self, codes: Tensor) -> Tensor:
        """The quantized vectors of codes (n, levels): the sums of their code vectors, (n, dim)."""
        rows = self.rows(codes)
        total = self.vectors[rows[:, 0]]
        for level in range(1, self.levels):
            total = total + self.vectors[rows[:, level]]
        return total

    def directions(self, codes: Tensor) -> Tensor:
        """The quantized vectors scaled to unit length, (n, dim): what codes alone should be scored by.

        Sums of code vectors are shorter than z, by how much differs from item to item; <z_q, sum> would
        prefer long sums. The length follows from the codes, so nothing more need be stored.
        """
        return F.normalize(self.decode(codes), dim=1)

    def partial_sums(self, codes: Tensor) -> Tensor:
        """The quantized vectors after each level, (n, levels, dim); the last one is `decode`'s."""
        return self.vectors[self.rows(codes)].cumsum(1)

    def rows(self, codes: Tensor) -> Tensor:
        """Rows of the code vectors of codes (..., levels) in the table."""
        if self.by_modality:
            return codes + self.row_of_level[codes[..., 0]]
        return codes + self.row_of_level

    def level_zero(self, z: Tensor, modality: Tensor | None) -> Tensor:
        """The modality codes of z, (n,), where there is a level for them."""
        if self.modality == "assigned":
            assert modality is not None
            return modality
        if self.classifier is not None:
            with torch.autocast(z.device.type, enabled=False):
                logits: Tensor = self.classifier(z)
                return logits.argmax(1)
        return nearest(z, self.codebook(0))

    def _by_encoding(self) -> ResidualQuantizer:
        """The quantizer that finds the codes."""
        assert self.encoding is not None
        books = "modality" if self.by_modality else "common"
        other = ResidualQuantizer(
            self.dim, self.sizes, modality=self.modality, shared=self.shared, codebooks=books
        ).to(self.vectors)
        other.vectors.copy_(self.encoding)
        return other

    def _greedy(self, z: Tensor, modality: Tensor | None) -> Tensor:
        codes = []
        residual = z
        for level in range(self.levels):
            code = (
                self.level_zero(z, modality)
                if level < self.first_level
                else nearest(residual, self.codebook(level))
            )
            residual = residual - self.codebook(level)[code]  # eq. 6
            codes.append(code)
        return torch.stack(codes, dim=1)

    def _beam(self, z: Tensor, modality: Tensor | None, beam: int) -> Tensor:
        """Codes whose sum is nearest to z among the `beam` best partial codings of each level."""
        n = len(z)
        codes = z.new_empty(n, 1, 0, dtype=torch.long)  # (n, beams, levels so far)
        residual = z[:, None]  # (n, beams, dim)
        if self.first_level:
            code = self.level_zero(z, modality)
            codes, residual = code[:, None, None], (z - self.codebook(0)[code])[:, None]
        for level in range(self.first_level, self.levels):
            book = self.codebook(level)
            gain = scores(residual.flatten(0, 1), book)  # how much each code lowers |residual|^2 / 2
            gain, code = gain.topk(min(beam, len(book)), dim=1)
            left = residual.square().sum(-1)[:, :, None] / 2 - gain.view(n, residual.shape[1], -1)
            width = gain.shape[1]
            chosen = left.flatten(1).topk(min(beam, left[0].numel()), largest=False).indices  # (n, beams)
            parent = chosen // width
            code = code.view(n, -1).gather(1, chosen)
            codes = torch.cat([_pick(codes, parent), code[:, :, None]], dim=2)
            residual = _pick(residual, parent) - book[code]
        best = residual.square().sum(-1).argmin(1)
        return codes[torch.arange(n, device=z.device), best]

    def _check(self, z: Tensor, modality: Tensor | None) -> None:
        if z.ndim != 2 or z.shape[1] != self.dim:
            raise BadInput(f"vectors of shape {tuple(z.shape)} for a quantizer of width {self.dim}")
        if self.modality == "assigned" and modality is None:
            raise BadInput("the modality is assigned in this quantizer: pass it for every vector")
        if modality is not None and modality.shape != (len(z),):
            raise BadInput(f"{tuple(modality.shape)} modalities for {len(z)} vectors")


def scores(residual: Tensor, book: Tensor) -> Tensor:
    """<r, e> - |e|^2 / 2 in float32, (n, codes): the larger, the nearer."""
    with torch.autocast(residual.device.type, enabled=False):
        return torch.addmm(book.square().sum(1) / -2, residual, book.T)


def nearest(residual: Tensor, book: Tensor) -> Tensor:
    """The code nearest to each residual (eq. 5), (n,)."""
    return scores(residual, book).argmax(1)


def _pick(values: Tensor, parent: Tensor) -> Tensor:
    """Rows `parent` (n, beams) along dim 1 of values (n, old beams, width)."""
    first = torch.arange(len(values), device=values.device)[:, None] * values.shape[1]
    return values.flatten(0, 1)[first + parent]
