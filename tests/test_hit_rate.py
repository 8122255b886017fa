"""One hit rate for NumPy and torch, by hand; metrics of evaluation are held against ir-measures elsewhere."""

import numpy as np
import pytest
import torch

from genius.errors import BadInput
from genius.hit_rate import hits, mean_over_tasks, rate_by_task

RELEVANT = [[False, True, False], [False, False, False], [True, True, False]]


def test_a_hit_is_any_relevant_item_among_the_first_k() -> None:
    for k, expected in ((1, [False, False, True]), (2, [True, False, True]), (99, [True, False, True])):
        assert hits(np.array(RELEVANT), k).tolist() == expected
        assert hits(torch.tensor(RELEVANT), k).tolist() == expected
    with pytest.raises(BadInput, match="1 or more"):
        hits(np.array(RELEVANT), 0)


def test_tasks_count_alike_whatever_their_size() -> None:
    hit, task = torch.tensor([True, False, False, True]), torch.tensor([0, 0, 0, 2])
    assert rate_by_task(hit, task).nan_to_num(-1).tolist() == pytest.approx([1 / 3, -1, 1])
    assert mean_over_tasks(hit, task) == pytest.approx(2 / 3)  # task 1 has no queries
