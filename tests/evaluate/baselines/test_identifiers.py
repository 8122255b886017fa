"""Identifiers: all different, in range, near items under near paths."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genius.evaluate.baselines.identifiers import (
    cluster_paths,
    numbers,
    own_codes,
    residual_codes,
    strings,
)


def check(identifiers, count):
    assert identifiers.codes.shape == (count, len(identifiers.sizes))
    assert (identifiers.codes >= 0).all()
    assert (identifiers.codes < np.array(identifiers.sizes)).all()
    assert len(np.unique(identifiers.codes, axis=0)) == count


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 300), st.integers(0, 10), st.booleans())
def test_all_different_whatever_the_vectors(count, seed, alike):
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(count, 6)).astype(np.float32)
    if alike:
        vectors[:] = vectors[0]
    names = [f"item {n}" for n in range(count)]
    check(numbers(count), count)
    check(strings(names), count)
    paths = cluster_paths(vectors, branches=4, leaf=5, seed=seed)
    check(paths, count)
    check(own_codes(paths), count)
    check(residual_codes(vectors, 2, 8, seed), count)


def test_numbers_are_written_in_digits():
    assert numbers(1000).codes[[0, 7, 42, 999]].tolist() == [[0, 0, 0], [0, 0, 7], [0, 4, 2], [9, 9, 9]]


def test_strings_depend_on_the_name_only():
    assert strings(["a", "b"]).codes[1].tolist() == strings(["x", "b"]).codes[1].tolist()


@pytest.mark.parametrize("name", [cluster_paths, lambda v: own_codes(cluster_paths(v)), residual_codes])
def test_items_of_a_cluster_share_their_first_code(clusters, name):
    first = name(clusters.items).codes[:, 0].reshape(-1, 8)  # 8 items per cluster
    share = np.mean([(row == np.bincount(row).argmax()).mean() for row in first])
    assert share > 0.6  # by chance: about 0.25


def test_own_codes_tell_clusters_of_different_parents_apart(clusters):
    paths = cluster_paths(clusters.items)
    own = own_codes(paths)
    assert len(np.unique(own.codes[:, 1])) == len(np.unique(paths.codes[:, :2], axis=0)) > 10


def test_the_same_every_time(clusters):
    assert (cluster_paths(clusters.items).codes == cluster_paths(clusters.items).codes).all()
