"""The text tower of `mini`: MiniLM (a 6-layer BERT), mean pooling, and a small head into the shared space."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor, nn

VOCABULARY, POSITIONS, WIDTH, LAYERS, HEADS, FEED_FORWARD = 30522, 512, 384, 6, 12, 1536
HEAD_HIDDEN = 768
MAX_LENGTH = 128  # positions read of a text; the rest is cut


class Layer(nn.Module):
    """One post-norm transformer layer."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.query_key_value = nn.Linear(WIDTH, 3 * WIDTH)
        self.attended = nn.Linear(WIDTH, WIDTH)
        self.attended_norm = nn.LayerNorm(WIDTH, eps=1e-12)
        self.widen = nn.Linear(WIDTH, FEED_FORWARD)
        self.narrow = nn.Linear(FEED_FORWARD, WIDTH)
        self.output_norm = nn.LayerNorm(WIDTH, eps=1e-12)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """(n, length, width) to the same shape; `mask` (n, 1, 1, length) is true where there is text."""
        count, length, _ = x.shape
        query, key, value = self.query_key_value(x).view(count, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        attended = self.attended(attended.transpose(1, 2).reshape(count, length, WIDTH))
        x = self.attended_norm(x + self.dropout(attended))
        y: Tensor = self.output_norm(x + self.dropout(self.narrow(F.gelu(self.widen(x)))))
        return y


class TextTower(nn.Module):
    """Token ids (n, length), 0 = padding, to raw vectors (n, dim)."""

    def __init__(self, dim: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(POSITIONS, WIDTH)
        self.norm = nn.LayerNorm(WIDTH, eps=1e-12)
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.ModuleList(Layer(dropout) for _ in range(LAYERS))
        self.hidden = nn.Linear(WIDTH, HEAD_HIDDEN)
        self.out = nn.Linear(HEAD_HIDDEN, dim)

    def features(self, token_ids: Tensor) -> Tensor:
        """Mean of the last layer over the text's tokens, (n, 384)."""
        there = token_ids != 0
        mask = there[:, None, None, :]
        x = self.words(token_ids) + self.positions.weight[: token_ids.shape[1]]
        x = self.dropout(self.norm(x))
        for layer in self.layers:
            x = layer(x, mask)
        weight = there.unsqueeze(-1).to(x.dtype)
        pooled: Tensor = (x * weight).sum(dim=1) / weight.sum(dim=1).clamp(min=1)
        return pooled

    def project(self, features: Tensor) -> Tensor:
        """Features to raw vectors (n, dim)."""
        return self.out(F.gelu(self.hidden(features)))  # type: ignore[no-any-return]

    def forward(self, token_ids: Tensor) -> Tensor:
        """Token ids to raw vectors (n, dim)."""
        return self.project(self.features(token_ids))


def start_from_minilm(tower: TextTower, weights: Mapping[str, Tensor]) -> None:
    """Fill the tower, all but its head, from MiniLM's published weights (BERT names)."""
    state = tower.state_dict()
    state["words.weight"] = weights["embeddings.word_embeddings.weight"]
    # every text is of segment 0, so that row is part of the position table
    segment = weights["embeddings.token_type_embeddings.weight"][0]
    state["positions.weight"] = weights["embeddings.position_embeddings.weight"] + segment
    for part in ("weight", "bias"):
        state[f"norm.{part}"] = weights[f"embeddings.LayerNorm.{part}"]
        for row in range(LAYERS):
            theirs, ours = f"encoder.layer.{row}", f"layers.{row}"
            parts = [weights[f"{theirs}.attention.self.{name}.{part}"] for name in ("query", "key", "value")]
            state[f"{ours}.query_key_value.{part}"] = torch.cat(parts)
            state[f"{ours}.attended.{part}"] = weights[f"{theirs}.attention.output.dense.{part}"]
            state[f"{ours}.attended_norm.{part}"] = weights[f"{theirs}.attention.output.LayerNorm.{part}"]
            state[f"{ours}.widen.{part}"] = weights[f"{theirs}.intermediate.dense.{part}"]
            state[f"{ours}.narrow.{part}"] = weights[f"{theirs}.output.dense.{part}"]
            state[f"{ours}.output_norm.{part}"] = weights[f"{theirs}.output.LayerNorm.{part}"]
    tower.load_state_dict(state)


def tokenize(tokenizer: Tokenizer, texts: Sequence[str]) -> Tensor:
    """Texts as padded token ids (n, length), cut to MAX_LENGTH with their last token, [SEP]; 0 is padding."""
    encoded = [_cut(ids) for ids in token_ids(tokenizer, texts)]
    lengths = np.fromiter(map(len, encoded), dtype=np.int64, count=len(encoded))
    places = np.arange(lengths.max(initial=0)) < lengths[:, None]
    padded = np.zeros(places.shape, dtype=np.int64)
    padded[places] = np.fromiter(chain.from_iterable(encoded), dtype=np.int64, count=lengths.sum())
    return torch.from_numpy(padded)


def token_ids(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    """The token ids of whole texts."""
    readable = [text.encode("utf-8", "replace").decode() for text in texts]  # lone surrogates become `?`
    return [encoding.ids for encoding in tokenizer.encode_batch(readable)]


def _cut(ids: list[int]) -> list[int]:
    return ids if len(ids) <= MAX_LENGTH else [*ids[: MAX_LENGTH - 1], ids[-1]]
