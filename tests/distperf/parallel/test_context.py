"""Context parallelism on real ranks, against one process on whole sequences."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks
from torch import Tensor

from distperf.errors import DistperfError
from distperf.model.dropout import Draws, attach_draws
from distperf.model.init import fill_for
from distperf.model.llama import Llama, build_model, causal_attention
from distperf.model.loss import loss_sum
from distperf.model.span import Span
from distperf.parallel.context import (
    METHODS,
    apply_context_parallel,
    context_slice,
    context_span,
    divide_rows,
)
from distperf.parallel.ring import meeting, ring_attention, ring_attention_backward
from distperf.parallel.ulysses import exchange
from distperf.recipe.runspec import ModelSpec

SPEC = ModelSpec("llama", 2, 32, 8, 4, 48, 61, False, 1e4, 1e-5, 0.0)
BATCH, LENGTH, SEED, FIRST = 2, 32, 3, 40


def make_model(spec: ModelSpec) -> Llama:
    model = build_model(spec).to_empty(device="cpu")
    fill = fill_for(spec, SEED)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(fill(name, parameter.shape, 0, parameter.numel()).view_as(parameter))
    draws = Draws(SEED, torch.device("cpu"))
    attach_draws(model, draws)
    draws.at(FIRST)
    return model


def batch() -> tuple[Tensor, Tensor]:
    tokens = torch.randint(SPEC.vocab, (BATCH, LENGTH + 1), generator=torch.Generator().manual_seed(5))
    return tokens[:, :-1], tokens[:, 1:]


def projected(heads: int, groups: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    """Queries, keys, values and a gradient of the output for whole sequences."""
    generator = torch.Generator().manual_seed(heads)
    shapes = ((BATCH, n, LENGTH, 16) for n in (heads, groups, groups, heads))
    return tuple(torch.randn(shape, generator=generator).to(dtype) for shape in shapes)


def attended(
    attend: Callable[..., Tensor], q: Tensor, k: Tensor, v: Tensor, grad: Tensor
) -> tuple[Tensor, ...]:
    """The output, and gradients of q, k and v."""
    inputs = tuple(t.detach().clone().requires_grad_() for t in (q, k, v))
    out = attend(*inputs)
    return out.detach(), *torch.autograd.grad(out, inputs, grad)


def local(tensor: Tensor, group: dist.ProcessGroup, method: str) -> Tensor:
    """The rows of (B, heads, S, K) that this rank holds."""
    span = context_span(group.rank(), group.size(), method)
    return tensor[:, :, span.positions(LENGTH // group.size(), tensor.device)]


def count_sent_bytes(group: dist.ProcessGroup) -> list[int]:
    """From now on, the bytes that this rank sends to others."""
    sent: list[int] = []
    batch, exchange = dist.batch_isend_irecv, dist.all_to_all_single

    def batch_isend_irecv(operations: list[dist.P2POp]) -> list[dist.Work]:
        sent.extend(each.tensor.nbytes for each in operations if each.op is dist.isend)
        return batch(operations)

    def all_to_all_single(output: Tensor, input: Tensor, *args, **kwargs):
        sent.append(input.nbytes * (group.size() - 1) // group.size())
        return exchange(output, input, *args, **kwargs)

    dist.batch_isend_irecv, dist.all_to_all_single = batch_isend_irecv, all_to_all_single
    return sent


def stated_bytes(method: str, ranks: int, heads: int, groups: int) -> int:
    """Of a forward and backward pass, as the docstrings of Ulysses and Ring say."""
    one = BATCH * LENGTH // ranks * 16 * 4
    if method == "ulysses":
        return 2 * (ranks - 1) * one * (2 * heads + 2 * groups) // ranks
    keys = 2 * groups * one
    return 2 * (ranks - 1) * keys + ranks * keys


def check_attention(group: dist.ProcessGroup, method: str, heads: int, groups: int) -> None:
    whole = projected(heads, groups)
    expected = attended(causal_attention, *whole)
    rows = [local(t, group, method) for t in whole]
    sent = count_sent_bytes(group)
    found = attended(METHODS[method](group), *rows)
    assert sum(sent) == stated_bytes(method, group.size(), heads, groups), (method, group.size(), sent)
    for name, ours, one in zip(("out", "dq", "dk", "dv"), found, expected, strict=True):
        theirs = local(one, group, method)
        error = float((ours - theirs).abs().max() / one.abs().max())
        assert error <= (0.0 if method == "ulysses" else 1e-6), (
            method,
            group.size(),
            heads,
            groups,
            name,
            error,
        )


def check_half_precision(group: dist.ProcessGroup) -> None:
    """Errors in bf16 are at most twice those of one process: each step rounds once, and merging does not."""
    whole = projected(6, 2, torch.bfloat16)
    exact = attended(causal_attention, *(t.double() for t in whole))
    one = attended(causal_attention, *whole)
    found = attended(METHODS["ring"](group), *(local(t, group, "ring") for t in whole))
    for ours, theirs, right in zip(found, one, exact, strict=True):
        right, theirs = (local(t, group, "ring") for t in (right, theirs))
        assert (ours - right).norm() <= 2 * (theirs - right).norm()


def check_operators(group: dist.ProcessGroup) -> None:
    """What compilers are told of the operators' results, shapes, strides and dtypes, is so."""
    q, k, v, grad = (t.transpose(1, 2).contiguous().transpose(1, 2) for t in projected(6, 2))
    done = ring_attention(q, k, v, group.group_name)
    for operator, tensors in (
        (exchange, (q.movedim(2, 0),)),
        (ring_attention, (q, k, v)),
        (ring_attention_backward, (grad, q, k, v, *done)),
    ):
        real, told = (
            torch.utils._pytree.tree_leaves(operator(*(t.to(device) for t in tensors), group.group_name))
            for device in ("cpu", "meta")
        )
        for one, other in zip(real, told, strict=True):
            assert (one.shape, one.stride(), one.dtype) == (other.shape, other.stride(), other.dtype), (
                operator
            )


def gradients(model: Llama, inputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
    loss = loss_sum(model(inputs), targets)
    loss.backward()
    return {"loss": loss.detach(), **{name: p.grad for name, p in model.named_parameters()}}


def check_model(group: dist.ProcessGroup, method: str, dropout: float) -> None:
    spec = dataclasses.replace(SPEC, dropout=dropout)
    expected = gradients(make_model(spec), *batch())
    model = make_model(spec)
    apply_context_parallel(model, group, method)
    found = gradients(model, *(context_slice(t, group.rank(), group.size(), method) for t in batch()))
    for name, grad in found.items():
        dist.all_reduce(grad, group=group)
        error = float((grad - expected[name]).abs().max() / expected[name].abs().max())
        assert error <= 1e-5, (method, group.size(), dropout, name, error)


def check_context() -> None:
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    for group in (pairs[dist.get_rank() // 2], dist.group.WORLD):
        for method in METHODS:
            check_attention(group, method, 8, 4)
            check_attention(group, method, 4, 4)
            for dropout in (0.0, 0.3):
                check_model(group, method, dropout)
        check_attention(group, "ring", 3, 1)
        check_half_precision(group)
        check_operators(group)


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_ranks_that_share_sequences_compute_what_one_process_does() -> None:
    """cp 2 and 4, both methods, grouped queries, dropout: loss, every gradient, and the bytes that are sent."""
    run_ranks(check_context, 4)


def test_zigzag_steps_are_exact_and_equal_work() -> None:
    """Over N steps each query sees the keys up to its position once; every rank does the same work in every step."""
    for size in (2, 3, 4):
        rows = 6
        spans = [
            context_span(rank, size, "ring").positions(rows, torch.device("cpu")) for rank in range(size)
        ]
        for rank in range(size):
            seen = torch.zeros(rows, rows * size, dtype=torch.int64)
            for source in range(size):
                queries, keys, causal = meeting(rank, source, rows)
                block = torch.ones(len(spans[rank][queries]), len(spans[source][keys]), dtype=torch.int64)
                block = block.tril() if causal else block
                assert causal or block.numel() == rows * rows // 2
                seen[queries] = seen[queries].index_add(1, spans[source][keys], block)
            visible = torch.arange(rows * size)[None] <= spans[rank][:, None]
            assert torch.equal(seen, visible.long())


def test_slices_hold_every_position_once() -> None:
    """What ranks hold together is the whole sequence, and rows know their positions."""
    positions = torch.arange(24).expand(2, 24)
    for method in METHODS:
        parts = [context_slice(positions, rank, 3, method) for rank in range(3)]
        assert torch.equal(torch.cat(parts, dim=1).sort(dim=1).values, positions)
    assert parts[1][0].tolist() == [4, 5, 6, 7, 16, 17, 18, 19]


def test_sequence_parallel_rows_are_parts_of_the_ranks_own() -> None:
    """divide_rows goes on dividing what context parallelism left."""
    model = make_model(SPEC)
    divide_rows(model, 1, 2)
    assert model.layers[0].mlp_dropout.span == Span((1,), 2)
    assert model.layers[0].self_attn.span == Span()


def test_a_model_without_such_attention_is_refused() -> None:
    """A module whose attention would see only its own rows is not divided in silence."""
    group = dist.ProcessGroup(0, 1)
    with pytest.raises(DistperfError, match=r"set parallel\.cp: 1"):
        apply_context_parallel(torch.nn.Linear(2, 2), group, "ulysses")
