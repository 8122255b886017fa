import pytest
import torch

from genius.quantize import refine as refinement
from genius.quantize.codebooks import MovingAverage, init_codebooks, kmeans, split_largest
from genius.quantize.refine import refine
from genius.quantize.residual import ResidualQuantizer


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def clustered(n: int = 600, dim: int = 8, clusters: int = 12, noise: float = 0.05):
    """Unit vectors around a few centres, with a modality that shifts them."""
    centres = torch.randn(clusters, dim, generator=generator(1))
    shift = torch.randn(3, dim, generator=generator(2))
    modality = torch.arange(n) % 3
    z = centres[torch.randint(clusters, (n,), generator=generator(3))] + shift[modality]
    z = z + noise * torch.randn(n, dim, generator=generator(4))
    return torch.nn.functional.normalize(z, dim=1), modality


def error(quantizer, z, modality, beam=1) -> float:
    return float((z - quantizer.decode(quantizer.encode(z, modality, beam))).square().sum(1).mean())


def test_kmeans_finds_separate_clusters():
    centres = torch.randn(20, 8, generator=generator(5)) * 5
    x = (centres[:, None] + 0.01 * torch.randn(20, 30, 8, generator=generator(6))).flatten(0, 1)
    found = kmeans(x, 20, generator())
    assert torch.cdist(centres, found).min(1).values.max() < 0.02


def test_kmeans_is_repeatable_and_takes_fewer_vectors_than_centres():
    x = torch.randn(50, 4, generator=generator())
    assert torch.equal(kmeans(x, 8, generator(7)), kmeans(x, 8, generator(7)))
    few = kmeans(x[:3], 8, generator())
    assert few.shape == (8, 4)
    assert torch.isfinite(few).all()
    same = kmeans(x[:1].expand(9, 4), 4, generator())
    torch.testing.assert_close(same, x[:1].expand(4, 4))


def test_start_puts_modality_means_at_level_zero_and_each_level_lowers_the_error():
    z, modality = clustered()
    quantizer = ResidualQuantizer(8, (3, 16, 16, 16))
    codes = init_codebooks(quantizer, z, modality, generator())
    for code in range(3):
        torch.testing.assert_close(quantizer.codebook(0)[code], z[modality == code].mean(0))
    assert torch.equal(codes, quantizer.encode(z, modality))
    left = (z[:, None] - quantizer.partial_sums(codes)).square().sum(2).mean(0).tolist()
    assert left == sorted(left, reverse=True)
    assert left[-1] < 0.1 * left[0]


def test_start_of_the_other_ways():
    z, modality = clustered()
    classified = ResidualQuantizer(8, (3, 16), modality="classifier")
    init_codebooks(classified, z, modality, generator())
    assert not classified.codebook(0).any()
    assert (classified.encode(z)[:, 0] == modality).float().mean() > 0.9  # it knows the modality at once
    plain = ResidualQuantizer(8, (16, 16), modality="none")
    assert init_codebooks(plain, z, modality, generator()).shape == (600, 2)
    shared = ResidualQuantizer(8, (3, 16, 16), shared=True)
    init_codebooks(shared, z, modality, generator())
    lengths = shared.codebook(1).norm(dim=1)
    assert lengths[:8].mean() > 2 * lengths[8:].mean()  # the second half holds the finer level


def test_moving_average_by_hand():
    quantizer = ResidualQuantizer(1, (3, 2))
    quantizer.vectors.copy_(torch.tensor([[0.0], [0.0], [0.0], [1.0], [-1.0]]))
    moving = MovingAverage(quantizer, decay=0.9, dead_below=0.0)
    codes = torch.tensor([[0, 0], [0, 0], [0, 1], [0, 1]])
    moving.start(quantizer, codes, batch=4)
    assert moving.count.tolist() == [4, 0, 0, 2, 2]
    residual = torch.tensor([[[0.0], [2.0]], [[0.0], [1.0]], [[0.0], [3.0]], [[0.0], [-1.0]]])
    moving.update(quantizer, residual, torch.tensor([[0, 0], [0, 0], [0, 0], [0, 1]]), generator())
    # code 0: count 0.9 * 2 + 0.1 * 3, total 0.9 * 2 + 0.1 * 6; code 1: 1.8 + 0.1, -1.8 - 0.1
    torch.testing.assert_close(moving.count[3:], torch.tensor([2.1, 1.9]))
    torch.testing.assert_close(quantizer.codebook(1), torch.tensor([[2.4 / 2.1], [-1.0]]))
    assert quantizer.codebook(0).tolist() == [[0.0], [0.0], [0.0]]  # unseen modalities keep their vectors


def test_moving_averages_follow_vectors_that_move():
    z, modality = clustered()
    quantizer = ResidualQuantizer(8, (3, 16, 16))
    codes = init_codebooks(quantizer, z, modality, generator())
    moving = MovingAverage(quantizer, decay=0.9, dead_below=2.0)
    moving.start(quantizer, codes, batch=len(z))
    turned = z.roll(1, dims=1)
    before = error(quantizer, turned, modality)
    for step in range(40):
        codes = quantizer.encode(turned, modality)
        residual = (
            turned[:, None] - torch.nn.functional.pad(quantizer.partial_sums(codes), (0, 0, 1, 0))[:, :-1]
        )
        moving.update(quantizer, residual, codes, generator(step))
    assert error(quantizer, turned, modality) < before / 5


def test_dead_codes_are_revived_but_never_at_level_zero():
    z, modality = clustered()
    quantizer = ResidualQuantizer(8, (3, 16))
    quantizer.codebook(1)[1:] = 100.0  # nobody will ever choose these
    moving = MovingAverage(quantizer, decay=0.5, dead_below=2.0)
    images = torch.zeros_like(modality)
    for step in range(20):
        codes = quantizer.encode(z, images)
        residual = z[:, None] - torch.nn.functional.pad(quantizer.partial_sums(codes), (0, 0, 1, 0))[:, :-1]
        moving.update(quantizer, residual, codes, generator(step))
    codes = quantizer.encode(z, images)
    assert len(codes[:, 1].unique()) == 16
    assert not quantizer.codebook(0)[1:].any()


@pytest.mark.parametrize("beam", [1, 4])
def test_refinement_lowers_the_error_for_new_vectors_too(beam):
    z, modality = clustered(1200, noise=0.3)
    seen, new = (z[:900], modality[:900]), (z[900:], modality[900:])
    quantizer = ResidualQuantizer(8, (3, 16, 16, 16))
    init_codebooks(quantizer, *seen, generator())
    before = [error(quantizer, *part, beam) for part in (seen, new)]
    errors = refine(quantizer, *seen, rounds=6, beam=beam)
    after = [error(quantizer, *part, beam) for part in (seen, new)]
    assert errors[0] == pytest.approx(before[0], rel=1e-5)
    assert after[0] == pytest.approx(min(errors), rel=1e-5)
    assert after[0] < 0.97 * before[0]
    assert after[1] < before[1]


def test_refinement_employs_idle_codes_and_repeats():
    z, modality = clustered()
    vectors = []
    for _ in range(2):
        quantizer = ResidualQuantizer(8, (3, 16, 16))
        init_codebooks(quantizer, z, modality, generator())
        quantizer.codebook(2)[4:] = 100.0
        refine(quantizer, z, modality, rounds=8, beam=2, seed=3)
        vectors.append(quantizer.vectors)
    assert torch.equal(*vectors)
    assert len(quantizer.encode(z, modality, 2)[:, 2].unique()) > 12


@pytest.mark.parametrize("way", ["nearest", "classifier", "none"])
def test_refinement_leaves_the_modality_alone(way):
    z, modality = clustered()
    sizes = (16, 16) if way == "none" else (3, 16, 16)
    quantizer = ResidualQuantizer(8, sizes, modality=way)
    init_codebooks(quantizer, z, modality, generator())
    before, codes = quantizer.codebook(0).clone(), quantizer.encode(z)
    refine(quantizer, z, rounds=4)
    if way != "none":
        assert torch.equal(quantizer.codebook(0), before)
        assert torch.equal(quantizer.encode(z)[:, 0], codes[:, 0])


def test_code_vectors_from_counts_of_pairs_are_those_from_residuals(monkeypatch):
    monkeypatch.setattr(refinement, "PREFIX_WEIGHT", 0.0)
    monkeypatch.setattr(refinement, "RIDGE", 0.0)
    z, modality = clustered()
    vectors = []
    for fit in (
        lambda q, codes: refinement._fit(q, z, codes, 3, 1.0),
        lambda q, codes: refinement._fit_ordered(q, z, codes, torch.ones(len(z)), 3, 1.0),
    ):
        quantizer = ResidualQuantizer(8, (3, 16, 16))
        fit(quantizer, init_codebooks(quantizer, z, modality, generator()))
        vectors.append(quantizer.vectors)
    torch.testing.assert_close(*vectors, rtol=1e-4, atol=1e-5)


def test_ordered_refinement_also_fits_the_sums_of_the_first_levels(monkeypatch):
    z, modality = clustered(1200, noise=0.3)
    left = []
    for prefix_weight in (0.0, 0.1):
        monkeypatch.setattr(refinement, "PREFIX_WEIGHT", prefix_weight)
        quantizer = ResidualQuantizer(8, (3, *(16,) * 4))
        init_codebooks(quantizer, z, modality, generator())
        codes = quantizer.encode(z, modality, beam=4)
        quantizer.codebook(1)[:] += 1.0  # the sum of all levels does not change
        quantizer.codebook(2)[:] -= 1.0
        refinement._fit_ordered(quantizer, z, codes, torch.ones(len(z)), 20, 0.0)
        left.append((z[:, None] - quantizer.partial_sums(codes)).square().sum(2).mean(0))
    assert left[1][1] < 0.1 * left[0][1]
    assert left[1][-1] < 1.1 * left[0][-1]


def test_items_with_a_large_error_count_more_but_all_do():
    even = torch.ones(4)
    weight = refinement._weights(torch.tensor([0.0, 0.1, 0.1, 0.4]), even)
    assert weight[0] > 0
    assert weight[0] < weight[1] == weight[2] < weight[3]
    assert weight.mean() == pytest.approx(1)
    assert refinement._weights(torch.zeros(4), even).isfinite().all()


def test_items_that_lie_close_together_are_coded_more_precisely(monkeypatch):
    width = torch.tensor([0.5, 1.0]).repeat_interleave(600)
    z = 4 * width[:, None] + width[:, None] * torch.randn(1200, 8, generator=generator(5))
    only = torch.zeros(1200, dtype=torch.long)

    def errors() -> torch.Tensor:
        quantizer = ResidualQuantizer(8, (3, *(16,) * 4))
        init_codebooks(quantizer, z, only, generator(), seeding="random")
        refine(quantizer, z, only, rounds=8, beam=4, ordered=True)
        return (z - quantizer.decode(quantizer.encode(z, only, 4))).square().sum(1)

    relative = errors()
    monkeypatch.setattr(refinement, "_spread", lambda quantizer, z, codes: torch.ones(len(z)))
    absolute = errors()
    assert relative[:600].mean() < 0.8 * absolute[:600].mean()
    assert (relative / width.square()).mean() < (absolute / width.square()).mean()


def test_items_that_are_all_the_same_have_no_spread():
    z = torch.ones(20, 8)
    quantizer = ResidualQuantizer(8, (3, 4, 4))
    codes = init_codebooks(quantizer, z, torch.zeros(20, dtype=torch.long), generator())
    spread = refinement._spread(quantizer, z, codes)
    assert (spread > 0).all() and spread.isfinite().all()


def test_refinement_of_shared_codebooks():
    z, modality = clustered()
    quantizer = ResidualQuantizer(8, (3, 16, 16), shared=True)
    init_codebooks(quantizer, z, modality, generator())
    errors = refine(quantizer, z, modality, rounds=5, beam=2)
    assert min(errors) < errors[0]


def test_random_seeds_spend_centres_where_vectors_are():
    generator = torch.Generator().manual_seed(0)
    crowd = torch.randn(2000, 8, generator=generator)
    outliers = 20 * torch.randn(30, 8, generator=generator)
    x = torch.cat([crowd, outliers])
    shares = {}
    for seeding in ("distance", "random"):
        centres = kmeans(x, 32, torch.Generator().manual_seed(1), seeding=seeding)
        shares[seeding] = float((centres.norm(dim=1) < 6).float().mean())
        assert (torch.cdist(x, centres).argmin(1).bincount(minlength=32) > 0).sum() > 28
    assert shares["random"] > 2 * shares["distance"]


def test_a_centre_without_members_splits_the_largest_cluster():
    centres = torch.tensor([[4.0, 0.0], [0.0, 4.0], [9.0, 9.0]])
    split_largest(centres, torch.tensor([2, 7, 0]), torch.Generator().manual_seed(0))
    assert centres[2].norm() != 4
    torch.testing.assert_close(centres[2] / centres[2].norm(), centres[1] / 4)


def test_code_vectors_stay_short_where_codes_have_many_members(monkeypatch):
    assert [refinement._ridge(members) for members in (1, 8, 12, 16, 500)] == [0.0, 0.0, 0.5, 1.0, 1.0]
    z, modality = clustered(1200)
    norms = []
    for ridge in (0.0, 4.0):
        monkeypatch.setattr(refinement, "RIDGE", ridge)
        quantizer = ResidualQuantizer(8, (3, 16, 16))
        codes = init_codebooks(quantizer, z, modality, generator())
        refinement._fit_ordered(quantizer, z, codes, torch.ones(len(z)), 10, 1.0)
        norms.append(float(quantizer.vectors[3:].norm(dim=1).mean()))
    assert norms[1] < norms[0]


def test_many_rounds_begin_with_a_part_of_the_items():
    def rows(number, rounds):
        found = refinement._some_rows(1000, number, rounds, generator(number))
        return torch.arange(1000)[found]

    assert [len(rows(number, 40)) for number in (0, 18, 36, 39)] == [500, 750, 1000, 1000]
    assert len(rows(5, 40).unique()) == len(rows(5, 40))
    assert not torch.equal(rows(0, 40), rows(1, 40)[:500])
    assert len(rows(0, refinement.MANY_ROUNDS - 1)) == 1000


def test_codes_that_saw_a_part_of_the_items_leave_a_smaller_error(monkeypatch):
    z = torch.nn.functional.normalize(torch.randn(600, 32, generator=generator(5)), dim=1)
    modality = torch.zeros(len(z), dtype=torch.long)
    least = []
    for share in (1.0, 0.5):
        monkeypatch.setattr(refinement, "FIRST_SHARE", share)
        quantizer = ResidualQuantizer(32, (3, *(32,) * 6))
        init_codebooks(quantizer, z, modality, generator(), seeding="random")
        least.append(min(refine(quantizer, z, modality, rounds=30, beam=4, ordered=True)))
    assert least[1] < 0.9 * least[0]
