import math
import subprocess
import sys

import numpy as np
import pytest

from genius.errors import TrainingStopped
from genius.quantize.health import measure

CODES = np.array([[0, 1, 2], [0, 1, 2], [0, 1, 3], [0, 2, 0], [1, 1, 2], [1, 0, 0], [2, 3, 3], [2, 3, 3]])
MODALITY = np.array([0, 0, 0, 0, 1, 1, 2, 2])


def test_figures_by_hand():
    health = measure(CODES, (3, 4, 8), modality=MODALITY, error=0.25)
    assert health.items == 8
    assert health.collisions == 4 / 8  # rows 0, 1 and 6, 7
    assert health.purity == 1.0
    first, second, third = health.levels
    assert (first.usage, first.dead, first.buckets, first.largest_bucket) == (1.0, 0, 3, 4)
    assert first.typical_bucket == (16 + 4 + 4) / 8
    assert first.entropy == pytest.approx(1.5)
    assert (second.usage, second.dead, second.buckets, second.largest_bucket) == (1.0, 0, 5, 3)
    assert second.entropy == pytest.approx(-(0.5 * math.log2(0.5) + 0.25 * math.log2(0.25) + 2 * 0.125 * -3))
    assert (third.usage, third.dead, third.buckets, third.largest_bucket) == (3 / 8, 5, 6, 2)
    assert third.agreement is None


def test_usage_is_of_the_codes_that_could_be_used():
    health = measure(np.array([[0, 5], [0, 9]]), (3, 4096))
    assert health.levels[1].usage == 1.0
    assert health.levels[1].dead == 4094


def test_agreement_is_level_by_level():
    targets = CODES.copy()
    targets[:2, 1] = 3
    health = measure(CODES, (3, 4, 8), query_codes=CODES, target_codes=targets)
    assert [level.agreement for level in health.levels] == [1.0, 0.75, 1.0]


def test_purity_does_not_ask_which_code_is_which_modality():
    permuted = CODES.copy()
    permuted[:, 0] = (CODES[:, 0] + 1) % 3
    assert measure(permuted, (3, 4, 8), modality=MODALITY).purity == 1.0
    assert measure(CODES, (3, 4, 8), modality=np.array([0, 0, 0, 1, 1, 1, 2, 2])).purity == 7 / 8


def test_collapse_stops_with_the_figure():
    healthy = measure(CODES, (3, 4, 8), modality=MODALITY, error=0.1)
    healthy.check()
    with pytest.raises(TrainingStopped, match=r"modality purity 0\.8750"):
        measure(CODES, (3, 4, 8), modality=np.array([0, 0, 0, 1, 1, 1, 2, 2])).check()
    with pytest.raises(TrainingStopped, match="quantization error nan"):
        measure(CODES, (3, 4, 8), error=math.nan).check()
    stuck = np.zeros((100, 3), dtype=np.uint16)
    stuck[:, 0] = np.arange(100) % 3
    with pytest.raises(TrainingStopped, match=r"level 1 uses 1\.0% of its codes"):
        measure(stuck, (3, 256, 256), modality=np.arange(100) % 3).check()


def test_lines_and_table_show_every_level():
    health = measure(CODES.astype(np.uint16), (3, 4, 8), modality=MODALITY, error=0.25)
    assert (
        health.lines()[0] == "8 items, collisions 50.00%, modality purity 1.0000, quantization error 0.2500"
    )
    assert len(health.lines()) == 5
    assert health.table().row_count == 3
    assert health.as_dict()["levels"][2]["dead"] == 5


def test_health_needs_no_torch():
    code = "import sys, genius.quantize.health; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
