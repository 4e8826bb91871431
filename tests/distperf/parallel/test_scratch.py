"""Buffers lent again and again."""

from __future__ import annotations

import torch

from distperf.parallel.scratch import Scratch


def test_one_buffer_serves_requests_of_about_the_same_size():
    """What is given back is lent again; only buffers in use at the same time need memory of their own."""
    scratch = Scratch(torch.device("cpu"), 100)
    for numel in (100, 60, 80):
        scratch.give(scratch.take(numel, torch.float32))
    assert scratch.bytes == 400
    first, second = scratch.take(90, torch.float32), scratch.take(90, torch.float32)
    assert first.data_ptr() != second.data_ptr()
    assert scratch.bytes == 800


def test_a_small_request_does_not_hold_a_large_buffer():
    """A small buffer lent for long must not keep a large one from others."""
    scratch = Scratch(torch.device("cpu"), 100)
    scratch.give(scratch.take(100, torch.float32))
    scratch.take(10, torch.float32)
    scratch.take(100, torch.float32)
    assert scratch.bytes == 440
