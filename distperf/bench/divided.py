"""What dividing a layer over ranks adds to it: a whole layer against its parts, forward and backward, by what is sent.

Everything that dividing costs is in it: exchanges, copies around them, the dispatch of divided tensors, waiting for
the others. On CPUs that is several times what the same exchanges take one after the other (distperf.bench.comm).

Legend: N ranks of a group, B sequences of S positions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from math import ceil

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from distperf.bench.comm import Case, Found, hosts_of
from distperf.bench.timing import typical_together
from distperf.model.llama import Llama, tensor_plan
from distperf.parallel.context import apply_context_parallel
from distperf.parallel.tensor import apply_tensor_parallel
from distperf.process_group import Ranks
from distperf.recipe.planner.traffic import layer_bytes
from distperf.recipe.runspec import ModelSpec
from distperf.recipe.stages import Stage

MOST_RANKS = 8  # of a group: layers are hardly ever divided further
HEAD_SIZE = 64
SIZES = ((1, 64), (2, 256), (8, 256))  # B, S
DEVICE_SIZES = ((1, 512), (2, 2048), (4, 4096))
ENOUGH_S = 0.2  # a size at which a layer takes longer is the last that is tried
LEAST_S = 1e-6  # where dividing costs nothing that can be seen


def cases(ranks: Ranks, device: torch.device) -> Iterator[Case]:
    """One inside each host, and one over hosts with a rank of each. All ranks take part, in the same order."""
    hosts = hosts_of(ranks)
    scopes = {"host": [members[:MOST_RANKS] for members in hosts],
              "hosts": [[members[0] for members in hosts[:MOST_RANKS]]]}  # fmt: skip
    for where, groups in scopes.items():
        if max(map(len, groups)) > 1:
            made = {tuple(members): dist.new_group(members) for members in groups}
            mine = next((group for members, group in made.items() if ranks.rank in members), None)
            yield partial(_added, where, mine, device)


def _added(where: str, group: dist.ProcessGroup | None, device: torch.device) -> Found:
    """Seconds beyond 1 / N of a whole layer's, told by the first rank of each group.

    Cost: what apply_tensor_parallel, Ulysses and Ring say, some times each.
    """
    if group is None or group.size() == 1:
        return []
    found: Found = []
    dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    spec = _spec(group.size(), device)
    for sequences, positions in SIZES if device.type == "cpu" else DEVICE_SIZES:
        own = 2 * ceil(positions / (2 * group.size()))  # ring cuts a sequence into 2 N pieces
        whole = _seconds(_layer(spec, dtype, device), (sequences, own * group.size()), group)
        longest = whole
        for what, divide in DIVIDE.items():
            layer = _layer(spec, dtype, device)
            divide(layer, spec, group)
            seconds = _seconds(layer, (sequences, own), group)
            longest, added = max(longest, seconds), seconds - whole / group.size()
            sent = layer_bytes(what, spec, sequences * own * group.size(), dtype.itemsize, group.size())
            found.append({"what": what, "where": where, "amount": sent, "value": max(LEAST_S, added)})
        if longest > ENOUGH_S:
            break
    return found if group.rank() == 0 else []


def _over_tp(layer: nn.Module, spec: ModelSpec, group: dist.ProcessGroup) -> None:
    device = next(layer.parameters()).device.type
    apply_tensor_parallel(layer, DeviceMesh.from_group(group, device), tensor_plan(spec))


DIVIDE: dict[str, Callable[[nn.Module, ModelSpec, dist.ProcessGroup], None]] = {
    "tensor": _over_tp,
    "ulysses": lambda layer, _, group: apply_context_parallel(layer, group, "ulysses"),
    "ring": lambda layer, _, group: apply_context_parallel(layer, group, "ring"),
}


def _spec(ranks: int, device: torch.device) -> ModelSpec:
    """A layer that so many ranks can divide."""
    heads = ranks * ceil((4 if device.type == "cpu" else 16) / ranks)
    hidden = heads * HEAD_SIZE
    return ModelSpec("llama", layers=1, hidden=hidden, heads=heads, kv_heads=heads, ffn=3 * hidden, vocab=1,
                     tied_embedding=True, rope_theta=1e4, norm_eps=1e-5, dropout=0.0)  # fmt: skip


def _layer(spec: ModelSpec, dtype: torch.dtype, device: torch.device) -> nn.Module:
    """It takes and gives the stream, as a stage between others does."""
    with device:
        layer = Llama(spec, Stage(1, 3, 0, 1)).to(dtype)
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.02)
    return layer


def _seconds(layer: nn.Module, rows: tuple[int, int], group: dist.ProcessGroup) -> float:
    """Of the slowest rank, forward and backward, with a stream of `rows` (B, S)."""
    one = next(layer.parameters())
    stream = torch.randn(*rows, one.shape[-1], device=one.device).to(one.dtype).requires_grad_()
    gradient = torch.ones_like(stream)

    def step() -> None:
        layer.zero_grad(set_to_none=True)
        layer(stream).backward(gradient)

    return typical_together(step, one.device, group)
