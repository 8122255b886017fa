"""The decoder's beam search as a program of fixed shape.

Both first levels are one pass, because all modalities are known in advance; then one pass per level; then the
items under the beams are scored by their codes, or by one more pass.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from genius.decode.model import Decoder, DirectLogits
from genius.errors import BadInput
from genius.search.beam import first_of_equal
from genius.search.codebooks import Codebooks
from genius.search.gpu.code_vectors import has_float32_products
from genius.search.gpu.fixed_lookup import FixedLookup
from genius.search.gpu.fixed_trie import FixedTrie
from genius.search.gpu.passes import DecoderPasses, can_run
from genius.search.gpu.steps import (
    Beams,
    CandidateTensors,
    FixedShape,
    best_leaves,
    dense_children,
    first_beams,
    leaves_of,
    sparse_children,
)


class FixedDecoder:
    """Search by the decoder's log-probabilities; the weights can be bfloat16, scores are float32.

    With `suffixes`, items get the decoder's score of all their codes, else the cosine of z with the sum of
    their code vectors.
    """

    def __init__(
        self,
        trie: FixedTrie,
        codebooks: Codebooks,
        decoder: Decoder,
        shape: FixedShape,
        suffixes: bool,
        passes: Decoder | DecoderPasses | None = None,
    ) -> None:
        if len(trie.codes) < 2 or shape.stop < 2:
            raise BadInput(
                "a search of fixed shape needs at least 2 levels in the trie: set fixed = false for this pool"
            )
        self.trie, self.decoder, self.shape, self.suffixes = trie, decoder, shape, suffixes
        self.lookup = FixedLookup(trie, codebooks, shape)
        self.modalities = torch.arange(decoder.shape.sizes[0], device=trie.device)
        weight, self.vectors = decoder.embedding.weight, trie.vectors if suffixes else trie.vectors.split()
        self.float32_products = weight.dtype == torch.bfloat16 and has_float32_products(weight.device)
        self.passes: Any = _passes(decoder) if passes is None else passes  # both have the same methods

    @torch.no_grad()
    def __call__(self, z: Tensor, modalities: Tensor) -> CandidateTensors:
        """Candidates for `z` (batch, dim); `modalities` (batch, sizes[0]) masks the codes of level 0."""
        trie, shape = self.trie, self.shape
        direct = self.decoder.direct_logits(z)
        level_0, state = self.passes.start_from(z, self.modalities)
        zero = self._log_probs(level_0[:, None], 0, direct)[:, 0]  # (batch, modalities)
        one = self._log_probs(state.hidden, 1, direct)  # (batch, modalities, codes)
        first, second = trie.codes
        scores = zero[:, first] + one.flatten(1)[:, first * one.shape[2] + second]
        beams, column = first_beams(trie, scores, modalities, shape.beam)
        parent, code = first[column], second[column]
        path = torch.stack([parent, code], -1)  # (batch, beam, level) codes of each prefix
        for number in range(2, shape.stop):
            state = self.passes.advance(state, parent, code)
            beams, parent, code = self._children(beams, state.hidden, number, direct)
            path = torch.cat([path.gather(1, parent[..., None].expand(-1, -1, number)), code[..., None]], -1)
        beam, positions, valid = leaves_of(trie, beams, shape.leaves)
        if self.suffixes:
            total = self._suffix_scores(state, direct, beams, parent, code, beam, positions)
        else:
            total = self._cosine(z, path, beam, positions)
        return best_leaves(trie, total.masked_fill(~valid, -torch.inf), positions, beams, shape.k)

    def _children(
        self, beams: Beams, hidden: Tensor, number: int, direct: DirectLogits
    ) -> tuple[Beams, Tensor, Tensor]:
        """The best children of beams at level `number`, their parents and codes."""
        logits, total = self._logits_and_total(hidden, number, direct)
        beams = beams._replace(scores=beams.scores - total)  # not subtracted from every logit
        level = self.trie.dense_levels.get(number)
        if level is not None:
            return dense_children(beams, level, logits, self.shape.beam, self.trie.operations)
        return sparse_children(self.trie, beams, number, logits, self.shape)

    def _log_probs(self, hidden: Tensor, level: int, direct: DirectLogits) -> Tensor:
        """Log-probabilities of the codes of a level, normalised as the decoder was trained."""
        logits, total = self._logits_and_total(hidden, level, direct)
        return logits - total[..., None]

    def _logits_and_total(self, hidden: Tensor, level: int, direct: DirectLogits) -> tuple[Tensor, Tensor]:
        """Logits (batch, n, codes) of a level, and the logarithm of what their exponentials sum up to."""
        logits = every = self._logits(hidden, self.decoder.level_rows(level))
        if direct:
            logits += direct[level][:, None]
        if self.decoder.shape.normalise == "vocabulary":
            every = self._logits(hidden, self.decoder.embedding.weight)
        return logits, self.trie.operations.logsumexp(every)

    def _logits(self, hidden: Tensor, rows: Tensor) -> Tensor:
        """Logits of rows of the embedding in float32, also of bfloat16 weights."""
        scaled = hidden * self.decoder.shape.width**-0.5
        if self.float32_products:
            flat = torch.mm(scaled.flatten(0, -2), rows.T, out_dtype=torch.float32)
            return flat.view(*scaled.shape[:-1], -1)
        return F.linear(scaled.float(), rows.float())

    def _suffix_scores(
        self,
        state: Any,
        direct: DirectLogits,
        beams: Beams,
        parent: Tensor,
        code: Tensor,
        beam: Tensor,
        positions: Tensor,
    ) -> Tensor:
        """Scores of the items by all their codes: one pass over the beams' last code and what follows it."""
        levels = range(self.shape.stop, self.decoder.shape.levels)
        known = [code.gather(1, beam), *(self.trie.tensors.codes(positions, level) for level in levels)]
        codes = torch.stack(known, -1)  # (batch, n, levels left + 1)
        total = beams.scores.gather(1, beam)
        if len(levels):
            hidden = self.passes.read_codes(state, parent.gather(1, beam), codes[:, :, :-1])
            for time, level in enumerate(levels):
                logits, every = self._logits_and_total(hidden[:, :, time], level, direct)
                total = total + (logits.gather(-1, codes[:, :, time + 1, None])[..., 0] - every)
        return total.gather(1, first_of_equal(beam, codes))

    def _cosine(self, z: Tensor, path: Tensor, beam: Tensor, positions: Tensor) -> Tensor:
        """Cosine of z with the items' sums of code vectors."""
        lookup = self.lookup
        every = self.vectors.split_products(z)
        rows = lookup.rows[path[..., 0] if len(lookup.rows) > 1 else 0][..., : path.shape[2]]
        prefix = every.gather(1, (path + rows).flatten(1)).view(path.shape).sum(-1)
        similarity = prefix.gather(1, beam) + lookup.suffix_scores(every, positions, path.shape[2])
        return similarity / self.trie.length[positions].clamp_min(1e-6)


def _passes(decoder: Decoder) -> Decoder | DecoderPasses:
    """What computes the decoder's passes: on a GPU those that move fewer bytes, else the decoder."""
    return DecoderPasses(decoder) if decoder.embedding.weight.is_cuda and can_run(decoder) else decoder
