"""Batches on their way from a worker come back as they were."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("pyarrow", reason="a cluster needs the extra `cluster`")

from genius.cluster.wire import DamagedPart, pack_batches, unpack_batches
from genius.ingest.add import EncodedBatch
from genius.store.records import Passages, Record
from genius.types import Modality


@pytest.mark.parametrize("vectors", [True, False])
def test_records_come_back_with_their_passages(vectors):
    draw = np.random.default_rng(0)
    codes = draw.integers(0, 9, (3, 4)).astype(np.uint16)
    own = draw.standard_normal((3, 8)).astype(np.float16)
    spans = np.array([(0, 4), (3, 9), (9, 12)], np.int32)
    long = Passages(spans, codes[1:], own[1:] if vectors else None)
    records = [
        Record(
            "long", Modality.TEXT, codes[0], own[0] if vectors else None, text="twelve chars", passages=long
        ),
        Record("short", Modality.TEXT, codes[0], own[0] if vectors else None, text="short"),
    ]
    data = pack_batches([EncodedBatch(records)])
    (((first, second), _),) = unpack_batches(data)
    assert second.passages is None and first.passages is not None
    assert first.passages.columns() == long.columns()
    place = data.index(spans.astype("<i4").tobytes())
    with pytest.raises(DamagedPart):
        unpack_batches(data[:place] + b"\x01" + data[place + 1 :])
