"""The decoder's beam search equals transformers' generate, and its shortcuts equal the long way."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from genius.convert.decoder import to_released
from genius.decode.init import initialise
from genius.decode.model import Decoder
from genius.decode.shape import DecoderShape, Normalise
from genius.search.beam import DecoderScorer, beam_search
from genius.search.candidates import Candidates
from genius.search.trie import Trie
from genius.search.trie.tensors import Forest, TensorTrie

SIZES = (3, 17, 11, 11, 11)
Codes = NDArray[np.int64]
Answer = dict[tuple[int, ...], float]


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    return make_decoder("level")


def make_decoder(normalise: Normalise) -> Decoder:
    shape = DecoderShape(
        12, SIZES, layers=2, width=16, heads=2, head_width=8, feed_forward=32, prefix=4, normalise=normalise
    )
    decoder, generator = Decoder(shape).eval(), torch.Generator().manual_seed(0)
    initialise(decoder, generator)
    for parameter in decoder.parameters():
        parameter.data += 0.1 * torch.randn(parameter.shape, generator=generator)
    return decoder


def queries(count: int) -> Tensor:
    return torch.randn(count, 12, generator=torch.Generator().manual_seed(2))


def pool(items: int, modalities: tuple[int, ...] = (0, 1, 2)) -> Codes:
    rng = np.random.default_rng(items)
    codes = (rng.random((items, len(SIZES))) ** 2 * SIZES).astype(np.int64)
    codes[:, 0] = rng.choice(modalities, items)
    return codes


class KnownTrie(TensorTrie):
    """A tensor trie that remembers the trie it was made of."""

    def __init__(self, trie: Trie) -> None:
        super().__init__(trie)
        self.trie = trie


def forest(*codes: Codes, rows: tuple[Codes, ...] | None = None) -> Forest:
    names = rows or (None,) * len(codes)
    return Forest([KnownTrie(Trie.build(c, SIZES, r)) for c, r in zip(codes, names, strict=True)])


def answers(forest: Forest, found: list[list[Candidates]]) -> list[Answer]:
    """Codes and scores of each query's items; equal codes must have equal scores."""
    every: list[Answer] = [{} for _ in found[0]]
    for trie, per_query in zip(forest.tries, found, strict=True):
        for answer, leaves in zip(every, per_query, strict=True):
            for codes, score in zip(trie.trie.codes(leaves.positions).tolist(), leaves.scores, strict=True):
                assert answer.setdefault(tuple(codes), float(score)) == pytest.approx(score, abs=1e-5)
    return every


@contextmanager
def level_wise(t5: Any, shape: DecoderShape) -> Iterator[None]:
    """Let transformers normalise over the codes of the level: mask all other rows before its softmax."""
    level = 0

    def note(_module: Any, _args: Any, kwargs: Any) -> None:
        nonlocal level
        level = int(kwargs["past_key_values"].get_seq_length())

    def mask(_module: Any, _args: Any, logits: Tensor) -> Tensor:
        rows = slice(shape.offsets[level], shape.offsets[level] + shape.sizes[level])
        out = torch.full_like(logits, -torch.inf)
        out[..., rows] = logits[..., rows]
        return out

    hooks = [
        t5.decoder.register_forward_pre_hook(note, with_kwargs=True),
        t5.lm_head.register_forward_hook(mask),
    ]
    yield
    for hook in hooks:
        hook.remove()


def transformers_generate(decoder: Decoder, z: Tensor, codes: Codes, beam: int) -> list[Answer]:
    """Codes and scores that transformers' own constrained beam search finds with the same weights."""
    from transformers import T5Config, T5ForConditionalGeneration
    from transformers.modeling_outputs import BaseModelOutput

    shape = decoder.shape
    config = T5Config(
        vocab_size=shape.rows,
        d_model=shape.width,
        d_kv=shape.head_width,
        d_ff=shape.feed_forward,
        num_layers=0,
        num_decoder_layers=shape.layers,
        num_heads=shape.heads,
        decoder_start_token_id=0,
        eos_token_id=None,
    )
    t5 = T5ForConditionalGeneration(config).eval()
    tensors = to_released(decoder)
    own = {n.removeprefix("id_generator."): t for n, t in tensors.items() if n.startswith("id_generator.")}
    t5.load_state_dict(own, strict=False)
    prefix = z @ tensors["embed_projector.0.weight"].T + tensors["embed_projector.0.bias"]
    tree: dict[int, Any] = {}
    for item in codes.tolist():
        inner = tree
        for offset, code in zip(shape.offsets, item, strict=True):
            inner = inner.setdefault(offset + code, {})

    def allowed(_query: int, rows: Tensor) -> list[int]:
        inner = tree
        for row in rows[1:].tolist():
            inner = inner.get(row, {})
        return list(inner) or [0]

    with torch.no_grad(), level_wise(t5, shape) if shape.normalise == "level" else nullcontext():
        encoded = t5.encoder(inputs_embeds=prefix.view(len(z), shape.prefix, shape.width))
        output = t5.generate(
            encoder_outputs=BaseModelOutput(encoded.last_hidden_state),
            max_new_tokens=shape.levels,
            num_beams=beam,
            num_return_sequences=beam,
            do_sample=False,
            **({"length_penalty": 0.0} if beam > 1 else {"output_logits": True}),
            prefix_allowed_tokens_fn=allowed,
            return_dict_in_generate=True,
            output_scores=True,
        )
    found = output.sequences[:, 1:].reshape(len(z), beam, -1) - torch.tensor(shape.offsets)
    scores = output.sequences_scores.reshape(len(z), beam) if beam > 1 else _greedy(output)
    pairs = [zip(f.tolist(), s.tolist(), strict=True) for f, s in zip(found, scores, strict=True)]
    return [{tuple(codes): score for codes, score in pair if score > -1e6} for pair in pairs]


def _greedy(output: Any) -> Tensor:
    """One beam is a greedy search in transformers, which gives logits instead of scores."""
    chosen = output.sequences[:, 1:]
    steps = torch.stack(output.logits, 1).log_softmax(-1)
    return steps.gather(2, chosen[..., None]).sum((1, 2))[:, None]


def generate(decoder: Decoder, z: Tensor, trees: Forest, beam: int, **options: Any) -> list[list[Candidates]]:
    return beam_search(DecoderScorer(decoder, z), trees, len(z), beam, **options)


@pytest.mark.parametrize("beam", [1, 5, 50])
@pytest.mark.parametrize(
    ("count", "items", "modalities"),
    [(3, 2000, (0, 1, 2)), (1, 2000, (0, 1, 2)), (2, 20, (0, 1, 2)), (2, 400, (1,)), (1, 1, (2,))],
    ids=["batch", "one query", "pool under the beam", "one modality", "one item"],
)
def test_equals_transformers_generate(
    decoder: Decoder, beam: int, count: int, items: int, modalities: tuple[int, ...]
) -> None:
    codes, z = pool(items, modalities), queries(count)
    trees = forest(codes)
    ours = answers(trees, generate(decoder, z, trees, beam, stop=len(SIZES)))
    theirs = transformers_generate(decoder, z, codes, beam)
    for own, other in zip(ours, theirs, strict=True):
        assert own.keys() == other.keys()
        assert own == pytest.approx(other, abs=1e-4)


def test_a_decoder_normalised_over_the_vocabulary_ranks_as_transformers_does() -> None:
    """The published search: nothing is masked before the softmax. The lists are equal, scores included."""
    decoder, codes, z = make_decoder("vocabulary"), pool(2000), queries(20)
    trees = forest(codes)
    ours = answers(trees, generate(decoder, z, trees, 20, stop=len(SIZES)))
    by_level = answers(trees, generate(make_decoder("level"), z, trees, 20, stop=len(SIZES)))
    theirs = transformers_generate(decoder, z, codes, 20)

    def ranked(answer: Answer) -> list[tuple[int, ...]]:
        return sorted(answer, key=lambda item: -answer[item])

    for own, other in zip(ours, theirs, strict=True):
        assert ranked(own) == ranked(other)
        assert own == pytest.approx(other, abs=1e-4)
    assert any(ranked(own) != ranked(other) for own, other in zip(ours, by_level, strict=True))


def test_stopping_early_scores_as_stepwise(decoder: Decoder) -> None:
    codes, z = pool(3000), queries(3)
    trees = forest(codes)
    for stop in range(1, len(SIZES)):
        for answer, full in zip(
            answers(trees, generate(decoder, z, trees, 6, stop=stop)),
            answers(trees, generate(decoder, z, trees, 10_000, stop=len(SIZES))),
            strict=True,
        ):
            assert len(answer) >= 6
            assert answer == pytest.approx({item: full[item] for item in answer}, abs=1e-5)


def test_prefix_scores_on_request(decoder: Decoder) -> None:
    z, trees = queries(2), forest(pool(3000))
    whole = decoder.score_codes(z, torch.from_numpy(np.stack([pool(3000)] * 2)))[:, :, :2].sum(-1)
    found = generate(decoder, z, trees, 6, stop=2, suffixes=False)[0]
    for query, leaves in enumerate(found):
        rows = trees.tries[0].trie.rows(leaves.positions)
        np.testing.assert_allclose(leaves.scores, whole[query, rows], atol=1e-5)


def test_stops_by_itself_once_few_items_are_left(decoder: Decoder) -> None:
    trees = forest(pool(3000))
    found = generate(decoder, queries(4), trees, 8, leaves=200)[0]
    assert all(0 < len(leaves) <= 200 and leaves.beams == 8 for leaves in found)
    scorer = DecoderScorer(decoder, queries(4))
    beam_search(scorer, trees, 4, 8, leaves=200)
    assert scorer.state.level < len(SIZES) - 1  # all levels would have taken it to the last one
    fewer = pool(12)  # so few that the modality is the only code to choose
    scorer = DecoderScorer(decoder, queries(4))
    beam_search(scorer, forest(fewer), 4, 12)
    assert scorer.state.level == 1


class CountOperations(TorchDispatchMode):
    operations = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.operations += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("tries", [1, 2])
def test_operations_do_not_grow_with_beams_queries_or_items(decoder: Decoder, tries: int) -> None:
    def count(queried: int, beam: int, items: int) -> int:
        trees = forest(*[pool(items)] * tries)
        assert {trie.tree_levels for trie in trees.tries} == {3}
        with CountOperations() as counter:
            generate(decoder, queries(queried), trees, beam, stop=len(SIZES))
        return counter.operations

    assert count(1, 5, 4000) == count(1, 50, 4000) == count(8, 50, 4000) == count(8, 50, 8000) < 2000


@pytest.mark.parametrize("stop", [None, 2, len(SIZES)])
def test_several_tries_answer_as_one(decoder: Decoder, stop: int | None) -> None:
    codes, z = pool(1500), queries(4)
    alive = np.random.default_rng(5).random(1500) < 0.7
    parts = np.split(np.arange(1500), [1200, 1201])
    split, whole = forest(*(codes[p] for p in parts), rows=tuple(parts)), forest(codes[alive])
    split = Forest([trie.filtered(trie.trie.allow(alive)) for trie in split.tries])
    ours = answers(split, generate(decoder, z, split, 7, stop=stop))
    theirs = answers(whole, generate(decoder, z, whole, 7, stop=stop))
    for own, other in zip(ours, theirs, strict=True):
        assert own.keys() == other.keys()
        assert own == pytest.approx(other, abs=1e-5)


def test_modalities_are_kept_apart_per_query(decoder: Decoder) -> None:
    codes, z = pool(900), queries(3)
    trees = forest(codes)
    wanted = torch.tensor([[True, False, False], [False, True, True], [False, False, False]])
    ours = answers(trees, generate(decoder, z, trees, 5, modalities=wanted))
    for query in range(2):
        part = forest(codes[wanted[query].numpy()[codes[:, 0]]])
        expected = answers(part, generate(decoder, z[query : query + 1], part, 5))[0]
        best = sorted(ours[query], key=ours[query].__getitem__)[-5:]
        assert best == sorted(expected, key=expected.__getitem__)[-5:]
    assert ours[2] == {}


def test_of_equal_scores_lower_codes_win(decoder: Decoder) -> None:
    flat = Decoder(decoder.shape).eval()
    for parameter in flat.parameters():
        parameter.data.zero_()
    codes = pool(700)
    trees = forest(codes)
    (leaves,) = generate(flat, queries(1), trees, 9, stop=len(SIZES))[0]
    assert sorted(answers(trees, [[leaves]])[0]) == sorted(set(map(tuple, codes.tolist())))[:9]
    assert len(set(leaves.scores.tolist())) == 1


@pytest.mark.parametrize("stop", [None, 1, len(SIZES)])
def test_nothing_to_find(decoder: Decoder, stop: int | None) -> None:
    empty, full = forest(pool(0)), forest(pool(50))
    nothing = Forest([trie.filtered(trie.trie.allow(np.zeros(50, dtype=bool))) for trie in full.tries])
    beside = Forest([*empty.tries, *full.tries])
    for trees in (empty, nothing):
        assert answers(trees, generate(decoder, queries(2), trees, 5, stop=stop)) == [{}, {}]
    ours = answers(beside, generate(decoder, queries(2), beside, 5, stop=stop))
    assert ours == answers(full, generate(decoder, queries(2), full, 5, stop=stop))
