"""The plain beam search against trying all items."""

from __future__ import annotations

import torch

from genius.data.pairs import build_pairs
from genius.decode.init import initialise
from genius.decode.model import Decoder
from genius.decode.shape import DecoderShape
from genius.decode.validation import CodePool, best_items, hit_rates

SHAPE = DecoderShape(6, (3, 5, 4), layers=1, width=8, heads=1, head_width=8, feed_forward=8, prefix=2)
CODES = torch.tensor([[0, 4, 1], [2, 0, 0], [0, 4, 1], [0, 1, 3], [2, 0, 2], [0, 4, 0], [0, 4, 1]])


def decoder_and_queries(count: int = 4) -> tuple[Decoder, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    decoder = Decoder(SHAPE).eval()
    initialise(decoder, generator)
    return decoder, torch.randn(count, 6, generator=generator)


def test_a_wide_beam_equals_scoring_every_item() -> None:
    decoder, z = decoder_and_queries()
    pool = CodePool.build(CODES, SHAPE.sizes)
    score = decoder.score_codes(z, CODES.expand(4, -1, -1)).sum(-1)
    score = (score * 1e5).round() / 1e5  # items of equal codes are equal, and come in their own order
    expected = score.argsort(dim=1, descending=True, stable=True)
    assert torch.equal(best_items(decoder, pool, z, beam=50, k=7), expected)


def test_a_narrow_beam_finds_the_greedy_path() -> None:
    decoder, z = decoder_and_queries(1)
    pool = CodePool.build(CODES, SHAPE.sizes)
    state, left = decoder.start(z), torch.ones(len(CODES), dtype=torch.bool)
    for level in range(3):
        log_p = decoder.score_next(state)[0, 0]
        code = max(set(CODES[left, level].tolist()), key=lambda code, log_p=log_p: log_p[code].item())
        left &= CODES[:, level] == code
        state = decoder.advance(state, torch.zeros(1, 1, dtype=torch.long), torch.tensor([[code]]))
    rows = left.nonzero().flatten().tolist()
    found = best_items(decoder, pool, z, beam=1, k=4)[0].tolist()
    assert found == rows + [-1] * (4 - len(rows))


def test_tree_lists_only_codes_of_the_pool() -> None:
    pool = CodePool.build(CODES, SHAPE.sizes)
    root = pool.allowed(0, torch.zeros(1, 1, dtype=torch.long))
    assert root.tolist() == [[[True, False, True]]]
    second = pool.allowed(1, torch.tensor([[1, 0]]))  # below modality 2, below modality 0
    assert second.nonzero().tolist() == [[0, 0, 0], [0, 1, 1], [0, 1, 4]]


def test_fewer_items_than_asked_for() -> None:
    decoder, z = decoder_and_queries()
    pool = CodePool.build(CODES[1:2], SHAPE.sizes)
    assert best_items(decoder, pool, z, beam=9, k=3).tolist() == [[0, -1, -1]] * 4


def test_hit_rate_is_the_mean_over_tasks() -> None:
    import numpy as np

    pairs = build_pairs(
        np.ones((3, 2), np.float32),
        np.ones((3, 2), np.float32),
        query_image=[0, 1, 2],
        query_texts=[[], [], []],
        positives=[[0], [1, 2], [2]],
        item_image=[0, 1, 2],
        item_text=[-1, -1, -1],
        task=[4, 4, 7],
    )
    found = torch.tensor([[1, 2, 0], [2, -1, -1], [0, -1, -1]])
    rates = hit_rates(pairs, torch.arange(3), found, ks=(1, 3))
    assert rates == {"hit@1": 0.25, "hit@3": 0.5}  # task 4: 1/2 and 2/2; task 7: 0
