"""The way of gradients to the host, and of weights back."""

from __future__ import annotations

import torch
from late_copies import Late

from distperf.offload.lane import Lane
from distperf.offload.spans import cut


def test_a_lane_waits_before_it_uses_a_buffer_again():
    """Gradients and weights of many spans arrive right though copies are late; a few staging buffers serve all."""
    (spans,) = cut([160], 1.0, 16)
    copies = Late()
    lane = Lane(copies, spans, torch.float32, torch.bfloat16)
    grads, working = torch.arange(160.0), torch.zeros(160, dtype=torch.bfloat16)
    for factor in (1, 2):
        lane.send(spans, grads * factor)
        for span in spans:
            found = lane.gradients(span)
            assert torch.equal(found, grads[span.part] * factor)
            lane.stage(span).copy_(found)
            lane.publish(working[span.part])
        lane.join()
        assert torch.equal(working, (grads * factor).bfloat16())
    assert copies.most <= 4
    lane.send(spans, grads)
    lane.forget()
    assert lane.bytes == 160 * 4 + 3 * 16 * 2
