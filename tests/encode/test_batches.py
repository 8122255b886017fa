"""Embedding in batches: threads prepare images where there are many cores, and evaluation decodes ahead."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn

from genius.encode import batches


class Recorder:
    """An encoder whose vector of an image is the image; remembers which threads prepared."""

    def __init__(self):
        self.module, self.threads = nn.Identity(), set()

    def prepare_image(self, image):
        self.threads.add(threading.current_thread().name)
        return torch.full((1,), float(image))

    def image_vectors(self, pixels):
        return pixels


@pytest.mark.parametrize(("cores", "threaded"), [(2, False), (16, True)])
def test_images_are_prepared_by_threads_on_many_cores(monkeypatch, cores, threaded):
    monkeypatch.setattr(batches, "cores", lambda: cores)
    encoder = Recorder()
    found = batches.embed_images(encoder, range(50), 1, batch=16)
    assert found[:, 0].tolist() == [*range(50)]
    assert (threading.current_thread().name not in encoder.threads) is threaded
    encoder.threads.clear()
    assert batches.embed_images(encoder, [7], 1, batch=16).tolist() == [[7]]
    assert encoder.threads == {threading.current_thread().name}  # a query is not worth a thread
