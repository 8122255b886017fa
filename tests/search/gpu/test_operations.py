"""The kernels compute what their plain twins mean, and the decoder's passes what the decoder does.

Without a GPU the kernels run in Triton's interpreter, where Triton is installed: TRITON_INTERPRET=1 pytest …
"""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
import torch

from genius.decode.init import initialise
from genius.decode.model import Decoder
from genius.decode.shape import DecoderShape
from genius.search.gpu import operations
from genius.search.gpu.code_vectors import split_queries, split_rows
from genius.search.gpu.operations import PLAIN, Operations
from genius.search.gpu.passes import DecoderPasses

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HEADS, WIDTH = 2, 16
DTYPES = [torch.float32, torch.float16] + [torch.bfloat16] * (DEVICE == "cuda")  # not interpreted


@pytest.fixture(scope="module")
def kernels() -> Operations:
    if DEVICE == "cpu" and not INTERPRETED:
        pytest.skip("needs a GPU, or Triton's interpreter")
    found = operations.triton_operations()
    if found is None:
        pytest.skip("needs Triton")
    return found


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


def causal(times: int, known: int) -> torch.Tensor:
    ahead = torch.ones(times, known + times, dtype=torch.bool, device=DEVICE).triu(known + 1)
    return random(HEADS, times, known + times, seed=9).masked_fill(ahead, -torch.inf)


def close(found: torch.Tensor, expected: torch.Tensor, tolerance: float = 1e-5) -> None:
    """Compares by the norm; an element that nothing has written would be NaN, or far off."""
    assert found.shape == expected.shape and found.dtype == expected.dtype
    error = (found.double() - expected.double()).norm() / expected.double().norm()
    assert float(error) < tolerance


@pytest.mark.parametrize(("times", "known"), [(1, 2), (2, 0), (6, 3), (1, 15), (14, 2), (17, 1)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_self_attention(kernels: Operations, times: int, known: int, dtype: torch.dtype) -> None:
    inner, sequences = HEADS * WIDTH, 7
    own = random(sequences * times, 3 * inner, dtype=dtype)
    past = random(20, 2 * inner, seed=1, dtype=dtype)
    rows = torch.randint(0, 20, (sequences, known), device=DEVICE)
    arguments = own, past, rows, causal(times, known), HEADS
    found, expected = kernels.self_attention(*arguments), PLAIN.self_attention(*arguments)
    close(found, expected, 1e-5 if dtype == torch.float32 else 1e-2)


@pytest.mark.parametrize(("count", "prefix"), [(1, 30), (50, 30), (130, 8), (6, 33)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_prefix_attention(kernels: Operations, count: int, prefix: int, dtype: torch.dtype) -> None:
    inner = HEADS * WIDTH
    query = random(3, count, inner, dtype=dtype)
    both = random(3, prefix, 5, 2, inner, seed=1, dtype=dtype)  # of five layers
    arguments = query, both[:, :, 2, 0], both[:, :, 2, 1], HEADS
    found, expected = kernels.prefix_attention(*arguments), PLAIN.prefix_attention(*arguments)
    close(found, expected, 1e-5 if dtype == torch.float32 else 1e-2)


@pytest.mark.parametrize("size", [3, 256, 5000])
def test_logsumexp(kernels: Operations, size: int) -> None:
    logits = 5 * random(2, 3, size)
    logits[0, 0, : size - 1] = -torch.inf
    close(kernels.logsumexp(logits), PLAIN.logsumexp(logits))


@pytest.mark.parametrize("size", [11, 256, 4100])
def test_child_maxima(kernels: Operations, size: int) -> None:
    scores, code_scores = random(2, 5), random(2, 5, size, seed=1)
    scores[1, 3] = -torch.inf
    exists = random(9, size, seed=2) > 1
    exists[4] = False
    prefix = torch.randint(0, 9, (2, 5), device=DEVICE)
    prefix[0, 0] = 4
    arguments = scores, code_scores, exists, prefix, 64
    assert torch.equal(kernels.child_maxima(*arguments), PLAIN.child_maxima(*arguments))


@pytest.mark.parametrize(
    ("count", "k"), [(1, 1), (50, 50), (192, 50), (3200, 50), (300, 7), (20_000, 50), (5, 9)]
)
def test_top_k(kernels: Operations, count: int, k: int) -> None:
    for values in (1, 3, 100_000):  # many equal ones, few, none
        scores = (values * random(3, count, seed=values)).round()
        scores[1, : count // 2] = -torch.inf
        scores[2, : count - 2] = -torch.inf
        scores[0, 0] = -0.0
        column, best = kernels.top_k(scores, k)
        expected, expected_best = PLAIN.top_k(scores, k)
        there = expected_best > -torch.inf
        assert torch.equal(best, expected_best)
        assert torch.equal(column[there], expected[there]) and int(column.max()) < count


def small_decoder(head_width: int = 8) -> Decoder:
    shape = DecoderShape(
        12, (3, 17, 11, 11, 11), layers=2, width=16, heads=2, head_width=head_width, feed_forward=32, prefix=4
    )
    decoder, generator = Decoder(shape).eval(), torch.Generator().manual_seed(0)
    initialise(decoder, generator)
    for parameter in decoder.parameters():
        parameter.data += 0.1 * torch.randn(parameter.shape, generator=generator)
    return decoder.to(DEVICE)


def check_passes(decoder: Decoder, passes: DecoderPasses) -> None:
    z, codes = random(4, 12), torch.arange(3, device=DEVICE)
    first, state = passes.start_from(z, codes)
    expected_first, expected = decoder.start_from(z, codes)
    close(first, expected_first)
    close(state.hidden, expected.hidden)
    generator = torch.Generator().manual_seed(3)
    for level, beam in ((1, 6), (2, 4)):
        parents = torch.randint(0, state.hidden.shape[1], (4, beam), generator=generator).to(DEVICE)
        codes = torch.randint(0, decoder.shape.sizes[level], (4, beam), generator=generator).to(DEVICE)
        state, expected = passes.advance(state, parents, codes), decoder.advance(expected, parents, codes)
        close(state.hidden, expected.hidden)
    parents = torch.randint(0, 4, (4, 9), generator=generator).to(DEVICE)
    codes = torch.randint(0, 11, (4, 9, 1), generator=generator).to(DEVICE)
    close(passes.read_codes(state, parents, codes), decoder.read_codes(expected, parents, codes))


def test_passes_equal_the_decoder() -> None:
    decoder = small_decoder()
    check_passes(decoder, DecoderPasses(decoder, PLAIN))


def test_passes_of_kernels_equal_the_decoder(kernels: Operations) -> None:
    decoder = small_decoder(head_width=16)
    check_passes(decoder, DecoderPasses(decoder, kernels))


def test_kernels_run_on_cuda_alone_and_where_the_shape_suits_them(monkeypatch: pytest.MonkeyPatch) -> None:
    shape, cuda = small_decoder(16).shape, torch.device("cuda")
    fast = Operations(*(lambda *_: torch.zeros(0) for _ in range(5)))  # type: ignore[arg-type]
    monkeypatch.setattr(operations, "triton_operations", lambda: fast)
    assert operations.operations_for(torch.device("cpu"), shape) is PLAIN
    assert operations.operations_for(cuda, shape) is fast
    narrow = operations.operations_for(cuda, replace(shape, head_width=8))
    assert narrow.self_attention is PLAIN.self_attention and narrow.logsumexp is fast.logsumexp
    monkeypatch.setattr(operations, "triton_operations", lambda: None)
    assert operations.operations_for(cuda, shape) is PLAIN


def test_products_of_halves_are_those_of_float32() -> None:
    z, vectors = (torch.nn.functional.normalize(random(40, 768, seed=seed)) for seed in (1, 2))
    found = split_queries(z).double() @ split_rows(vectors).double().T
    assert split_rows(vectors).dtype == torch.bfloat16
    assert float((found - z.double() @ vectors.double().T).abs().max()) < 1e-5


def test_a_kernel_that_is_wrong_is_found() -> None:
    cpu = torch.device("cpu")
    assert operations.disagreements(PLAIN, cpu) == []
    spoilt = {
        "self_attention": lambda own, *more: PLAIN.self_attention(own, *more) * 1.1,
        "prefix_attention": lambda query, *more: PLAIN.prefix_attention(query, *more).roll(1, 0),
        "logsumexp": lambda logits: PLAIN.logsumexp(logits) + 0.5,
        "child_maxima": lambda scores, *more: torch.full_like(PLAIN.child_maxima(scores, *more), torch.nan),
        "top_k": lambda scores, k: PLAIN.top_k(-scores, k),
    }
    for name, function in spoilt.items():
        assert operations.disagreements(PLAIN._replace(**{name: function}), cpu) == [name]


def test_kernels_that_disagree_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(operations, "disagreements", lambda *_: ["top_k"])
    operations.triton_operations.cache_clear()
    with pytest.warns(UserWarning, match="top_k"):
        assert operations.triton_operations() is None
    operations.triton_operations.cache_clear()
