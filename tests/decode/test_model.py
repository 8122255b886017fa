"""The decoder equals transformers' T5, and its step-by-step scores equal its one-pass scores."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from genius.convert.decoder import to_released
from genius.decode.init import init_from_codebooks, initialise
from genius.decode.layer import distance_buckets
from genius.decode.model import Decoder, DecoderState
from genius.decode.rivals import list_loss
from genius.decode.shape import PRESETS, DecoderShape
from genius.decode.targets import level_losses
from genius.errors import BadInput

SIZES = (3, 7, 5, 7)


def small(sizes: tuple[int, ...] = SIZES, layers: int = 2, heads: int = 2) -> DecoderShape:
    return DecoderShape(
        12, sizes, layers=layers, width=16, heads=heads, head_width=8, feed_forward=32, prefix=4
    )


@pytest.fixture(params=[False, True], ids=["plain", "query_logits"])
def shape(request: pytest.FixtureRequest) -> DecoderShape:
    return replace(small(), query_logits=request.param)


def make(shape: DecoderShape, seed: int = 0) -> Decoder:
    """A decoder with every weight random, norms and projector bias included."""
    decoder, generator = Decoder(shape).eval(), torch.Generator().manual_seed(seed)
    initialise(decoder, generator)
    for parameter in decoder.parameters():
        parameter.data += 0.1 * torch.randn(parameter.shape, generator=generator)
    return decoder


def random_codes(shape: DecoderShape, *lead: int) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.stack([torch.randint(size, lead, generator=generator) for size in shape.sizes], -1)


def queries(shape: DecoderShape, count: int) -> Tensor:
    return torch.randn(count, shape.dim, generator=torch.Generator().manual_seed(2))


def t5_logits(decoder: Decoder, z: Tensor, codes: Tensor) -> Tensor:
    """Logits (batch, levels, rows) of transformers' T5 with an empty encoder and the same weights."""
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
    )
    t5 = T5ForConditionalGeneration(config).eval()
    tensors = to_released(decoder)
    own = {n.removeprefix("id_generator."): t for n, t in tensors.items() if n.startswith("id_generator.")}
    missing, extra = t5.load_state_dict(own, strict=False)
    assert not extra
    assert set(missing) <= {"encoder.embed_tokens.weight", "decoder.embed_tokens.weight"}  # tied
    prefix = z @ tensors["embed_projector.0.weight"].T + tensors["embed_projector.0.bias"]
    start = torch.zeros_like(codes[:, :1])
    with torch.no_grad():
        encoded = t5.encoder(inputs_embeds=prefix.view(len(z), shape.prefix, shape.width))
        rows = torch.cat([start, codes[:, :-1] + torch.tensor(shape.offsets)[:-1]], -1)
        output = t5(encoder_outputs=BaseModelOutput(encoded.last_hidden_state), decoder_input_ids=rows)
    logits: Tensor = output.logits
    return logits


@pytest.mark.parametrize("preset", PRESETS)
def test_logits_equal_those_of_t5(preset: str) -> None:
    layers, _, heads, _, _ = PRESETS[preset]
    shape = small(layers=layers, heads=heads)
    decoder, z, codes = make(shape), queries(shape, 5), random_codes(shape, 5)
    expected = t5_logits(decoder, z, codes)
    assert expected.std() > 0.1
    for level, logits in enumerate(decoder(z, codes)):
        rows = slice(shape.offsets[level], shape.offsets[level] + shape.sizes[level])
        torch.testing.assert_close(logits, expected[:, level, rows], atol=1e-4, rtol=1e-4)


def test_log_probabilities_over_the_vocabulary_equal_those_of_t5() -> None:
    shape = replace(small(), normalise="vocabulary")
    decoder, z, codes = make(shape), queries(shape, 5), random_codes(shape, 5)
    expected = t5_logits(decoder, z, codes).log_softmax(-1)
    for level, log_probs in enumerate(decoder(z, codes)):
        rows = slice(shape.offsets[level], shape.offsets[level] + shape.sizes[level])
        torch.testing.assert_close(log_probs, expected[:, level, rows], atol=1e-4, rtol=1e-4)
    own = (codes + torch.tensor(shape.offsets))[..., None]
    scores = decoder.score_codes(z, codes[:, None])[:, 0]
    torch.testing.assert_close(scores, expected.gather(2, own)[..., 0], atol=1e-4, rtol=1e-4)
    losses = level_losses(decoder(z, codes), codes, normalised=True)
    torch.testing.assert_close(losses, -scores.mean(0), atol=1e-4, rtol=1e-4)
    ranking = list_loss(
        decoder(z, codes[:, None]), codes[:, None], torch.ones(5, 1, dtype=torch.bool), normalised=True
    )
    assert ranking == 0  # a list of one


def test_distances_beyond_the_exact_buckets_equal_those_of_t5() -> None:
    shape = small(sizes=(3, *[5] * 23))  # T5 merges distances from 16 on
    decoder, z, codes = make(shape), queries(shape, 2), random_codes(shape, 2)
    expected = t5_logits(decoder, z, codes)
    last = decoder(z, codes)[-1]
    torch.testing.assert_close(last, expected[:, -1, -5:], atol=1e-4, rtol=1e-4)
    from transformers.models.t5.modeling_t5 import T5Attention

    place = torch.arange(200)
    oracle = T5Attention._relative_position_bucket(place[None] - place[:, None], bidirectional=False)
    assert torch.equal(distance_buckets(200), oracle)


def follow(decoder: Decoder, z: Tensor, codes: Tensor) -> tuple[Tensor, DecoderState]:
    """Log-probabilities (batch, n, levels) of `codes` by single steps, and the last state."""
    state, scores = decoder.start(z), []
    for level in range(decoder.shape.levels):
        log_p = decoder.score_next(state)
        parents = torch.arange(codes.shape[1]).expand(codes.shape[:2]) % log_p.shape[1]
        rows = log_p.gather(1, parents[..., None].expand(-1, -1, log_p.shape[2]))
        scores.append(rows.gather(2, codes[:, :, level, None]))
        state = decoder.advance(state, parents, codes[:, :, level])
    return torch.cat(scores, -1), state


def test_one_pass_equals_single_steps(shape: DecoderShape) -> None:
    decoder, z, codes = make(shape), queries(shape, 3), random_codes(shape, 3, 6)
    stepwise, state = follow(decoder, z, codes)
    torch.testing.assert_close(decoder.score_codes(z, codes), stepwise, atol=1e-5, rtol=0)
    torch.testing.assert_close(decoder.score_codes(z, codes, 2), stepwise[:, :, 2:], atol=1e-5, rtol=0)
    assert (state.level, state.hidden.shape) == (4, (3, 0, 16))


def test_the_first_two_levels_in_one_pass_equal_two_steps(shape: DecoderShape) -> None:
    decoder = make(shape)
    z, codes = queries(decoder.shape, 4), torch.tensor([2, 0])  # beams for two of the three modalities
    hidden, state = decoder.start_from(z, codes)
    start = decoder.start(z)
    torch.testing.assert_close(hidden, start.hidden[:, 0])
    expected = decoder.advance(start, torch.zeros(4, 2, dtype=torch.long), codes.expand(4, 2))
    assert state.level == expected.level == 1
    torch.testing.assert_close(decoder.score_next(state), decoder.score_next(expected))
    parents, following = torch.tensor([[1, 0, 1]] * 4), torch.tensor([[6, 3, 0]] * 4)
    after, other = (decoder.advance(one, parents, following) for one in (state, expected))
    torch.testing.assert_close(decoder.score_next(after), decoder.score_next(other))


def test_known_codes_in_one_pass_equal_steps(shape: DecoderShape) -> None:
    decoder = make(shape)
    z, codes = queries(decoder.shape, 3), random_codes(decoder.shape, 3, 5)
    state = decoder.advance(decoder.start(z), torch.zeros(3, 5, dtype=torch.long), codes[:, :, 0])
    parents = torch.tensor([[4, 0, 2, 2]] * 3)
    suffix = codes[:, :4, 1:]
    hidden = decoder.read_codes(state, parents, suffix[:, :, :2])
    step = decoder.advance(state, parents, suffix[:, :, 0])
    torch.testing.assert_close(hidden[:, :, 0], step.hidden)
    same = torch.arange(4).expand(3, 4)
    step = decoder.advance(step, same, suffix[:, :, 1])
    torch.testing.assert_close(hidden[:, :, 1], step.hidden)
    scores = decoder.score_suffix(state, parents, suffix)
    last = decoder.score_next(step).gather(-1, suffix[:, :, 2:])
    torch.testing.assert_close(scores[:, :, 2:], last)
    torch.testing.assert_close(decoder.level_rows(1), decoder.embedding.weight[6:13])


def test_training_logits_are_those_of_the_scores(shape: DecoderShape) -> None:
    decoder, z, codes = make(shape), queries(shape, 3), random_codes(shape, 3, 1)
    for level, logits in enumerate(decoder(z, codes[:, 0])):
        expected = decoder.score_codes(z, codes)[:, 0, level]
        chosen = logits.log_softmax(-1).gather(1, codes[:, :, level])[:, 0]
        torch.testing.assert_close(chosen, expected, atol=1e-5, rtol=0)


def test_beams_follow_their_parents(shape: DecoderShape) -> None:
    """Beams that cross, double and die score as if each had been decoded alone."""
    decoder, z = make(shape), queries(shape, 2)
    state = decoder.advance(
        decoder.start(z), torch.zeros(2, 3, dtype=torch.long), torch.tensor([[0, 1, 2]] * 2)
    )
    parents, codes = torch.tensor([[2, 0, 2, 2], [1, 1, 0, 2]]), torch.tensor([[5, 5, 1, 0], [6, 2, 2, 3]])
    state = decoder.advance(state, parents, codes)
    state = decoder.advance(state, torch.tensor([[3, 1], [0, 2]]), torch.tensor([[4, 0], [1, 1]]))
    paths = torch.tensor([[[2, 0, 4, 0], [0, 5, 0, 0]], [[1, 6, 1, 0], [0, 2, 1, 0]]])
    alone, _ = follow(decoder, z, paths)
    torch.testing.assert_close(decoder.score_next(state)[:, :, 0], alone[:, :, 3], atol=1e-5, rtol=0)


def test_scores_are_normalised_over_the_level_and_float32(shape: DecoderShape) -> None:
    decoder, z = make(shape).bfloat16(), queries(shape, 2)
    state = decoder.start(z)
    for level, size in enumerate(SIZES):
        log_p = decoder.score_next(state)
        assert log_p.dtype == torch.float32
        assert log_p.shape == (2, 1, size)
        torch.testing.assert_close(log_p.exp().sum(-1), torch.ones(2, 1))
        assert state.level == level
        state = decoder.advance(state, torch.zeros(2, 1, dtype=torch.long), log_p.argmax(-1))


def test_narrow_numbers_stay_close(shape: DecoderShape) -> None:
    decoder, z, codes = make(shape), queries(shape, 4), random_codes(shape, 4, 3)
    exact = decoder.score_codes(z, codes)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(follow(decoder, z, codes)[0], exact, atol=0.15, rtol=0)
    torch.testing.assert_close(follow(decoder.bfloat16(), z, codes)[0], exact, atol=0.15, rtol=0)


def test_beams_share_the_keys_of_their_query() -> None:
    shape = small()
    decoder, z = make(shape), queries(shape, 2)
    first = decoder.start(z)
    later = decoder.advance(first, torch.zeros(2, 3, dtype=torch.long), torch.tensor([[0, 1, 2]] * 2))
    assert later.cross is first.cross
    assert first.cross[0][0].shape == (2, 2, 4, 8)


def test_every_weight_learns_but_rows_that_are_never_read() -> None:
    shape = small()
    decoder, codes = make(shape).train(), random_codes(shape, 8)
    sum(logits.square().sum() for logits in decoder(queries(shape, 8), codes)).backward()
    for name, parameter in decoder.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name
    assert (decoder.embedding.weight.grad[1:3] == 0).all()  # type: ignore[index]


def test_rows_start_from_the_codebooks() -> None:
    shape = small(sizes=(3, 400))
    generator = torch.Generator().manual_seed(0)
    books = [torch.randn(3, 12, generator=generator), 0.01 * torch.randn(400, 12, generator=generator)]
    books[1][7] = 3 * books[1][6]  # same direction
    decoder = make(shape)
    init_from_codebooks(decoder, books, generator, scale=2.0)
    rows = decoder.embedding.weight[6:]
    torch.testing.assert_close(rows[7], rows[6])
    assert rows.std().item() == pytest.approx(2.0, rel=0.25)
    with pytest.raises(BadInput, match="codebooks of shapes"):
        init_from_codebooks(decoder, books[:1], generator)


def test_query_logits_start_as_the_order_of_the_codes_by_distance() -> None:
    decoder = Decoder(replace(small(), query_logits=True))
    books = [torch.randn(size, 12) for size in SIZES]
    init_from_codebooks(decoder, books, torch.Generator().manual_seed(0))
    z = queries(decoder.shape, 5)
    for book, logits in zip(books, decoder.direct_logits(z), strict=True):
        assert torch.equal(logits.argsort(1, descending=True), torch.cdist(z, book).argsort(1))
    assert Decoder(small()).direct_logits(z) == ()


def test_query_logits_and_the_whole_vocabulary_do_not_go_together() -> None:
    with pytest.raises(BadInput, match="query_logits"):
        replace(small(), query_logits=True, normalise="vocabulary")


def test_start_is_reproducible_and_presets_are_named() -> None:
    one, two = Decoder(small()), Decoder(small())
    for decoder in (one, two):
        initialise(decoder, torch.Generator().manual_seed(4))
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    assert DecoderShape.preset("t5-small", 768, (3, *[4096] * 8)).rows == 32_774
    with pytest.raises(BadInput, match="mini, t5-small"):
        DecoderShape.preset("t5-huge", 8, (3, 4))
