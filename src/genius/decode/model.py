"""The decoder: a T5-style network that reads a query vector and scores codes, level by level (eq. 9, 10).

    z (batch, dim) -> projector -> 30 prefix vectors, read by cross-attention
    start, code 0, code 1 … -> self-attention -> logits of level 0, 1, 2 …

Training is one teacher-forced pass (`forward`). A search steps through the levels with many beams per query,
which share the keys and values of the query's prefix:

    state = decoder.start(z)                            one beam per query, no code chosen
    log_probs = decoder.score_next(state)               of the codes of the next level, for each beam
    state = decoder.advance(state, parents, codes)      beams reordered and extended by one code each
    decoder.score_suffix(state, parents, codes)         all remaining codes of known items, in one pass

With `query_logits`, the logits of a level are those of the network plus a linear function of z, the same
after any prefix. It starts as the similarity of z with the code vectors, lookup's score: the network learns
what to change about it.

`start_from`, `read_codes` and `level_rows` are the parts for callers that build their own passes. No step
copies a value to the host and every shape follows from the arguments' shapes, so a step can be captured in a
CUDA graph.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from genius.decode.layer import BUCKETS, Cross, DecoderLayer, distance_buckets
from genius.decode.shape import SPECIAL_ROWS, START, DecoderShape

DirectLogits = tuple[Tensor, ...]  # (batch, sizes[level]) by level, what z alone adds; empty: nothing


@dataclass(frozen=True, slots=True)
class DecoderState:
    """Beams of a batch of queries, each with `level` codes chosen."""

    level: int
    hidden: Tensor  # (batch, beam, width), what the head of `level` reads; no beam once all codes are chosen
    cache: Tensor  # (level + 1, batch * beam, layers, 2, heads, head_width) keys and values of the beams
    cross: tuple[Cross, ...]  # one per layer, shared by the beams of a query
    direct: DirectLogits  # shared by the beams of a query


class Decoder(nn.Module):
    """Scores codes of each level, given a query vector and the codes before (eq. 10).

    Put it in eval mode before searching, or dropout makes the scores random.
    """

    buckets: Tensor
    offsets: Tensor

    def __init__(self, shape: DecoderShape) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = nn.Embedding(shape.rows, shape.width)  # input and, tied, output
        self.projector = nn.Linear(shape.dim, shape.prefix * shape.width)
        self.prefix_norm = nn.RMSNorm(shape.width, eps=1e-6)
        self.position = nn.Embedding(BUCKETS, shape.heads)  # one table, used by all layers
        self.layers = nn.ModuleList(DecoderLayer(shape) for _ in range(shape.layers))
        self.final_norm = nn.RMSNorm(shape.width, eps=1e-6)
        self.dropout = nn.Dropout(shape.dropout)
        self.query_logits = nn.Linear(shape.dim, sum(shape.sizes)) if shape.query_logits else None
        self.heads: nn.ModuleList | None = None  # the rows of each level, where they are packed
        self.register_buffer("buckets", distance_buckets(shape.levels), persistent=False)
        self.register_buffer("offsets", torch.tensor(shape.offsets), persistent=False)

    def forward(self, z: Tensor, codes: Tensor) -> list[Tensor]:
        """Logits of each level given the true codes before it: (batch, sizes[level]) per level.

        `z` (batch, dim), `codes` (batch, levels); the last level's codes are not read. With n sequences for
        each query, `codes` (batch, n, levels), the logits are (batch, n, sizes[level]). A decoder that is
        normalised over the vocabulary gives log-probabilities instead.
        """
        several = codes.long() if codes.ndim == 3 else codes[:, None].long()
        hidden = (self._teacher_forced(z, several) * self.shape.width**-0.5).unbind(2)
        logits = [F.linear(rows, table) for rows, table in zip(hidden, self._output_rows(), strict=True)]
        if direct := self.direct_logits(z):
            logits = [scores + own[:, None] for scores, own in zip(logits, direct, strict=True)]
        if self.shape.normalise == "vocabulary":
            logits = [
                scores.float() - F.linear(rows, self.embedding.weight).float().logsumexp(-1, keepdim=True)
                for scores, rows in zip(logits, hidden, strict=True)
            ]
        return logits if codes.ndim == 3 else [scores[:, 0] for scores in logits]

    @torch.no_grad()
    def score_codes(self, z: Tensor, codes: Tensor, from_level: int = 0) -> Tensor:
        """Log-probabilities of given codes in one pass, (batch, n, levels - from_level), float32.

        `z` (batch, dim), `codes` (batch, n, levels): n code sequences for each query. Equal to what
        `score_next` gives step by step.
        """
        codes = codes.long()
        hidden, direct = self._teacher_forced(z, codes), self.direct_logits(z)
        scores = [
            self._log_probabilities(hidden[:, :, level], level, direct).gather(-1, codes[:, :, level, None])
            for level in range(from_level, self.shape.levels)
        ]
        return torch.cat(scores, -1)

    @torch.no_grad()
    def start(self, z: Tensor) -> DecoderState:
        """A state with one beam and no code chosen for each query, `z` (batch, dim)."""
        rows = torch.full((z.shape[0], 1), START, dtype=torch.long, device=z.device)
        cache, cross = self._new_cache(0, z.shape[0]), self._read_prefix(z)
        hidden = self._run(0, rows[..., None], cache, cross)[:, :, 0]
        return DecoderState(0, hidden, cache, cross, self.direct_logits(z))

    @torch.no_grad()
    def start_from(self, z: Tensor, codes: Tensor) -> tuple[Tensor, DecoderState]:
        """`start` and the first `advance` in one pass, with a beam for each of these level-0 `codes` (n,).

        Returns the hidden vectors (batch, width) that score level 0, and the state after it.
        """
        rows = torch.stack([torch.full_like(codes, START), codes + self.offsets[0]], -1)
        cache, cross = self._new_cache(1, len(z) * len(rows)), self._read_prefix(z)
        hidden = self._run(0, rows.expand(len(z), -1, -1), cache, cross)  # (batch, n, 2, width)
        return hidden[:, 0, 0], DecoderState(1, hidden[:, :, 1], cache, cross, self.direct_logits(z))

    @torch.no_grad()
    def score_next(self, state: DecoderState) -> Tensor:
        """Log-probabilities of the codes of `state.level`, (batch, beam, sizes[level]), float32.

        The softmax is over all codes of the level (or over the vocabulary, if the decoder is normalised so),
        not over those that exist in some pool.
        """
        return self._log_probabilities(state.hidden, state.level, state.direct)

    @torch.no_grad()
    def advance(self, state: DecoderState, parents: Tensor, codes: Tensor) -> DecoderState:
        """The state in which new beam b of a query continues beam `parents[:, b]` by `codes[:, b]`.

        Both (batch, new_beam); the new number of beams may be larger or smaller than the old one.
        """
        level = state.level + 1
        if level == self.shape.levels:  # nothing left to score
            return DecoderState(level, state.hidden[:, :0], state.cache[:0], state.cross, state.direct)
        hidden, cache = self._extend(state, parents, codes.long()[..., None])
        return DecoderState(level, hidden[:, :, 0], cache, state.cross, state.direct)

    @torch.no_grad()
    def read_codes(self, state: DecoderState, parents: Tensor, codes: Tensor) -> Tensor:
        """Hidden vectors (batch, n, times, width) after each of some known codes (batch, n, times).

        Sequence i of a query continues beam `parents[:, i]` (batch, n).
        """
        return self._extend(state, parents, codes)[0]

    @torch.no_grad()
    def score_suffix(
        self, state: DecoderState, parents: Tensor, codes: Tensor, at_once: int | None = None
    ) -> Tensor:
        """Log-probabilities of all codes that are left, in one pass, (batch, n, levels - level), float32.

        Sequence i of a query continues beam `parents[:, i]` (batch, n) by the known `codes[:, i]` (batch, n,
        levels - level). Equal to what `advance` and `score_next` give step by step. With `at_once`, so many
        sequences of each query are read at a time, which bounds the memory.
        """
        codes = codes.long()
        size = self.shape.sizes[state.level]
        scores = [self.score_next(state).flatten(1).gather(1, parents * size + codes[:, :, 0])[..., None]]
        if codes.shape[2] > 1:
            chunk = max(1, at_once or parents.shape[1])
            parts = zip(torch.split(parents, chunk, 1), torch.split(codes, chunk, 1), strict=True)
            scores.append(torch.cat([self._score_codes_after(state, *part) for part in parts], 1))
        return torch.cat(scores, -1)

    def _score_codes_after(self, state: DecoderState, parents: Tensor, codes: Tensor) -> Tensor:
        """Log-probabilities of all codes (batch, n, times) but the first, (batch, n, times - 1)."""
        hidden = self.read_codes(state, parents, codes[:, :, :-1])
        scores = []
        for time in range(hidden.shape[2]):
            every = self._log_probabilities(hidden[:, :, time], state.level + 1 + time, state.direct)
            scores.append(every.gather(-1, codes[:, :, time + 1, None]))
        return torch.cat(scores, -1)

    def level_rows(self, level: int) -> Tensor:
        """The rows of the embedding of a level's codes, (sizes[level], width); also its output weights."""
        return self._output_rows()[level]

    def direct_logits(self, z: Tensor) -> DirectLogits:
        """What z (batch, dim) alone adds to the logits of each level; empty without `query_logits`."""
        if self.query_logits is None:
            return ()
        every: Tensor = self.query_logits(z.to(self.query_logits.weight.dtype))
        return torch.split_with_sizes(every, list(self.shape.sizes), 1)

    def _extend(self, state: DecoderState, parents: Tensor, codes: Tensor) -> tuple[Tensor, Tensor]:
        """Hidden vectors of codes (batch, n, times) that continue the parents (batch, n), and their cache."""
        batch, beam = state.hidden.shape[:2]
        times = codes.shape[2]
        first = torch.arange(0, batch * beam, beam, device=parents.device)[:, None]
        cache = self._new_cache(state.level + times, parents.numel())
        torch.index_select(state.cache, 1, (first + parents).flatten(), out=cache[: state.level + 1])
        rows = codes + self.offsets[state.level : state.level + times]
        return self._run(state.level + 1, rows, cache, state.cross), cache

    def _run(self, level: int, rows: Tensor, cache: Tensor, cross: tuple[Cross, ...]) -> Tensor:
        """Hidden vectors (batch, n, time, width) of embedding rows (batch, n, time) from position `level` on.

        Their keys and values complete `cache`.
        """
        last = level + rows.shape[2]
        bias = self.position(self.buckets[level:last, :last]).permute(2, 0, 1)[None]  # (1, heads, time, last)
        if rows.shape[2] > 1:
            ahead = torch.ones_like(self.buckets[level:last, :last], dtype=torch.bool).triu(level + 1)
            bias = bias.masked_fill(ahead, -torch.inf)
        x = self.embedding(rows)
        for number, layer in enumerate(self.layers):
            x = layer(x, cross[number], bias, cache[:, :, number])
        hidden: Tensor = self.final_norm(x)
        return hidden

    def _teacher_forced(self, z: Tensor, codes: Tensor) -> Tensor:
        """Hidden vectors (batch, n, levels, width) of known codes (batch, n, levels), in one pass."""
        start = torch.full_like(codes[:, :, :1], START)
        rows = torch.cat([start, codes[:, :, :-1] + self.offsets[:-1]], dim=-1)
        ahead = torch.ones_like(self.buckets, dtype=torch.bool).triu(1)
        bias = self.position(self.buckets).permute(2, 0, 1)[None].masked_fill(ahead, -torch.inf)
        x = self.dropout(self.embedding(rows))
        for layer, cross in zip(self.layers, self._read_prefix(z), strict=True):
            x = layer(x, cross, bias)
        hidden: Tensor = self.dropout(self.final_norm(x))
        return hidden

    def _read_prefix(self, z: Tensor) -> tuple[Cross, ...]:
        kind = self.projector.weight.dtype
        prefix = self.projector(z.to(kind)).unflatten(-1, (self.shape.prefix, self.shape.width))  # eq. 9
        # Under autocast the norm needs float32, the layers read bfloat16: cast once, not once per layer.
        prefix = self.dropout(self.prefix_norm(prefix.to(kind)).to(prefix.dtype))
        return tuple(layer.read_prefix(prefix) for layer in self.layers)  # type: ignore[operator]

    def _output_rows(self) -> tuple[Tensor, ...]:
        """Each level's rows of the embedding, (sizes[level], width); one split, so one gradient."""
        return torch.split_with_sizes(self.embedding.weight, [SPECIAL_ROWS, *self.shape.sizes])[1:]

    def _log_probabilities(self, hidden: Tensor, level: int, direct: DirectLogits) -> Tensor:
        scaled = hidden * self.shape.width**-0.5
        logits = F.linear(scaled, self.level_rows(level)) if self.heads is None else self.heads[level](scaled)
        if direct:
            logits = logits.float() + direct[level][:, None]
        if self.shape.normalise == "level":
            return F.log_softmax(logits.float(), dim=-1)
        return logits.float() - F.linear(scaled, self.embedding.weight).float().logsumexp(-1, keepdim=True)

    def _new_cache(self, level: int, beams: int) -> Tensor:
        shape, like = self.shape, self.embedding.weight
        return like.new_empty(level + 1, beams, shape.layers, 2, shape.heads, shape.head_width)
