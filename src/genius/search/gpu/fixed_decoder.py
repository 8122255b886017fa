"""The decoder's beam search as a program of fixed shape.

Both first levels are one pass, because all modalities are known in advance; then one pass per level; then the
items under the beams are scored by their codes, or by one more pass.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from genius.decode.model import Decoder, DecoderState
from genius.errors import BadInput
from genius.search.beam import first_of_equal
from genius.search.codebooks import Codebooks
from genius.search.gpu.fixed_lookup import FixedLookup
from genius.search.gpu.fixed_trie import FixedTrie
from genius.search.gpu.steps import (
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
        self, trie: FixedTrie, codebooks: Codebooks, decoder: Decoder, shape: FixedShape, suffixes: bool
    ) -> None:
        if len(trie.codes) < 2 or shape.stop < 2:
            raise BadInput(
                "a search of fixed shape needs at least 2 levels in the trie: set fixed = false for this pool"
            )
        self.trie, self.decoder, self.shape, self.suffixes = trie, decoder, shape, suffixes
        self.lookup = FixedLookup(trie, codebooks, shape)
        self.modalities = torch.arange(decoder.shape.sizes[0], device=trie.device)
        self.float32_products = _has_float32_products(decoder.embedding.weight)

    @torch.no_grad()
    def __call__(self, z: Tensor, modalities: Tensor) -> CandidateTensors:
        """Candidates for `z` (batch, dim); `modalities` (batch, sizes[0]) masks the codes of level 0."""
        trie, shape = self.trie, self.shape
        level_0, state = self.decoder.start_from(z, self.modalities)
        zero = self._log_probs(level_0, 0)  # (batch, modalities)
        one = self._log_probs(state.hidden, 1)  # (batch, modalities, codes)
        first, second = trie.codes
        scores = zero[:, first] + one.flatten(1)[:, first * one.shape[2] + second]
        beams, column = first_beams(trie, scores, modalities, shape.beam)
        parent, code, parent_scores = first[column], second[column], zero
        path = torch.stack([parent, code], -1)  # (batch, beam, level) codes of each prefix
        for number in range(2, shape.stop):
            state = self.decoder.advance(state, parent, code)
            log_probs = self._log_probs(state.hidden, number)
            parent_scores = beams.scores
            level = trie.dense_levels.get(number)
            if level is not None:
                beams, parent, code = dense_children(beams, level, log_probs, shape.beam)
            else:
                beams, parent, code = sparse_children(trie, beams, number, log_probs, shape)
            path = torch.cat([path.gather(1, parent[..., None].expand(-1, -1, number)), code[..., None]], -1)
        beam, positions, valid = leaves_of(trie, beams, shape.leaves)
        if self.suffixes:
            total = self._suffix_scores(state, parent_scores, parent, code, beam, positions)
        else:
            total = self._cosine(z, path, beam, positions)
        return best_leaves(trie, total.masked_fill(~valid, -torch.inf), positions, beams, shape.k)

    def _log_probs(self, hidden: Tensor, level: int) -> Tensor:
        """Log-probabilities of the codes of a level, normalised as the decoder was trained."""
        logits = every = self._logits(hidden, self.decoder.level_rows(level))
        if self.decoder.shape.normalise == "vocabulary":
            every = self._logits(hidden, self.decoder.embedding.weight)
        return logits - every.logsumexp(-1, keepdim=True)

    def _logits(self, hidden: Tensor, rows: Tensor) -> Tensor:
        """Logits of rows of the embedding in float32, also of bfloat16 weights."""
        scaled = hidden * self.decoder.shape.width**-0.5
        if self.float32_products:
            flat = torch.mm(scaled.flatten(0, -2), rows.T, out_dtype=torch.float32)
            return flat.view(*scaled.shape[:-1], -1)
        return F.linear(scaled.float(), rows.float())

    def _suffix_scores(
        self,
        state: DecoderState,
        parent_scores: Tensor,
        parent: Tensor,
        code: Tensor,
        beam: Tensor,
        positions: Tensor,
    ) -> Tensor:
        """Scores of the items by all their codes: one pass over the beams' last code and what follows it."""
        trie, decoder = self.trie, self.decoder
        levels = range(self.shape.stop, len(decoder.shape.sizes))
        known = [code.gather(1, beam), *(trie.tensors.codes(positions, level) for level in levels)]
        codes = torch.stack(known, -1)  # (batch, n, levels left)
        parents = parent.gather(1, beam)
        total = parent_scores.gather(1, parents)
        hidden = state.hidden.gather(1, parents[..., None].expand(-1, -1, state.hidden.shape[2]))[:, :, None]
        if len(levels):
            hidden = torch.cat([hidden, decoder.read_codes(state, parents, codes[:, :, :-1])], 2)
        for time in range(codes.shape[2]):
            log_probs = self._log_probs(hidden[:, :, time], state.level + time)
            total = total + log_probs.gather(-1, codes[:, :, time, None])[..., 0]
        return total.gather(1, first_of_equal(beam, codes))

    def _cosine(self, z: Tensor, path: Tensor, beam: Tensor, positions: Tensor) -> Tensor:
        """Cosine of z with the items' sums of code vectors."""
        lookup = self.lookup
        every = z.float() @ lookup.vectors.T
        rows = lookup.rows[path[..., 0] if len(lookup.rows) > 1 else 0][..., : path.shape[2]]
        prefix = every.gather(1, (path + rows).flatten(1)).view(path.shape).sum(-1)
        similarity = prefix.gather(1, beam) + lookup.suffix_scores(every, positions, path.shape[2])
        return similarity / self.trie.length[positions].clamp_min(1e-6)


def _has_float32_products(weight: Tensor) -> bool:
    """Whether products of bfloat16 weights can be had in float32 without a copy of the weights."""
    if not weight.is_cuda or weight.dtype != torch.bfloat16:
        return False
    try:
        torch.mm(weight[:8], weight[:8].T, out_dtype=torch.float32)
    except (RuntimeError, TypeError):
        return False
    return True
