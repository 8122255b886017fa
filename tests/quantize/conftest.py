import numpy as np
import pytest

from genius.data.pairs import Pairs, build_pairs

DIM, TOPICS = 24, 10


def make_pairs(seed: int, queries: int = 240, items: int = 300) -> Pairs:
    """A small world: things of a few topics, as image, text and pair, asked for under two instructions.

    Image and text vectors of a thing are two rotated, noisy views of it; an instruction shifts the text.
    """
    world = np.random.default_rng(0)
    topics = world.standard_normal((TOPICS, DIM)) * 1.5
    views = [np.linalg.qr(world.standard_normal((DIM, DIM)))[0] * 0.4 + np.eye(DIM) for _ in range(2)]
    instructions = world.standard_normal((3, 2, DIM)) * 0.7  # wanted modality, variant
    gap = world.standard_normal(DIM)  # as between the image and the text vectors of CLIP
    random = np.random.default_rng(seed)
    things = topics[random.integers(TOPICS, size=items // 3)] + random.standard_normal((items // 3, DIM))
    things = things.repeat(3, axis=0)  # each as an image, a text and a pair
    images = things @ views[0] + gap + 0.2 * random.standard_normal((items, DIM))
    texts = things @ views[1] - gap + 0.2 * random.standard_normal((items, DIM))
    modality = np.arange(items) % 3
    target = random.permutation(items)[:queries]
    asked = things[target] @ views[1] + 0.4 * random.standard_normal((queries, DIM))
    variants = [asked + instructions[modality[target], v] for v in range(2)]
    return build_pairs(
        images.astype(np.float32),
        np.concatenate([texts, *variants]).astype(np.float32),
        query_image=[-1] * queries,
        query_texts=[[items + q, items + queries + q] for q in range(queries)],
        positives=[[int(t)] for t in target],
        item_image=[i if m != 1 else -1 for i, m in enumerate(modality)],
        item_text=[i if m != 0 else -1 for i, m in enumerate(modality)],
        task=[int(m) for m in modality[target]],
    )


@pytest.fixture(scope="session")
def train_pairs() -> Pairs:
    return make_pairs(1, queries=900, items=1200)


@pytest.fixture(scope="session")
def val_pairs() -> Pairs:
    return make_pairs(2)
