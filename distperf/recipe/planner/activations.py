"""Bytes that a micro-batch's forward pass leaves for its backward pass, and what a pass needs beside: formulas. Pure.

They are read off what `distperf.model.llama` and `distperf.model.loss` do, operation by operation; a test holds
them against the allocator's count. Attention is flash attention: its scores are never there.

Legend: T positions of a micro-batch on this rank (samples x sequence / cp), N ranks of tp, w bytes of an element,
D hidden, M = kv_heads x head size, F ffn, H heads, V vocabulary.

Source: Korthikanti et al., arXiv:2205.05198, for which tensors a block keeps; terms differ from theirs where RMSNorm,
SwiGLU, grouped queries and kernels do.
"""

from __future__ import annotations

from dataclasses import dataclass

from distperf.recipe.runspec import ModelSpec

# What torch's checkpoint keeps a block to repeat its draws: the state of the CPU's generator.
GENERATOR_BYTES = 5056
# Rows of logits that exist in fp32 at a time; a test holds it to `distperf.model.loss`.
LOSS_ROWS = 256
# Of a target: log of sums, share (fp32), column (int64), whether it is here.
TARGET_BYTES = 13


@dataclass(frozen=True)
class Shape:
    """A micro-batch on one rank.

    `fused`: RMSNorm is one kernel, which keeps its input as it is (CUDA); else (CPU) it keeps what it is made of.
    """

    model: ModelSpec
    positions: int  # T
    width: int  # w
    tp: int = 1
    exchanged: bool = False  # attention by exchanging heads (cp_method ulysses)
    fused: bool = False

    @property
    def keys(self) -> int:
        """M."""
        return self.model.kv_heads * (self.model.hidden // self.model.heads)

    @property
    def columns(self) -> int:
        """Columns of logits on this rank: of tp's ranks the first has most."""
        return -(-self.model.vocab // self.tp)

    @property
    def stream_bytes(self) -> int:
        """The residual stream: what goes from block to block."""
        return self.positions * self.model.hidden * self.width // self.tp

    @property
    def upcast(self) -> bool:
        """RMSNorm makes fp32 copies that are kept."""
        return self.width < 4 and not self.fused


def norm_kept(shape: Shape) -> int:
    """An RMSNorm's: input, normalised, and the output, which tp's ranks have whole."""
    inside = shape.model.hidden * (1 if shape.fused else 2) * (4 if shape.upcast else shape.width) + 4
    return shape.positions * (inside // shape.tp + shape.model.hidden * shape.width)


def block_kept(shape: Shape, mode: str) -> int:
    """A block's, by what `activation_checkpoint` says."""
    if mode == "full":
        return shape.stream_bytes + GENERATOR_BYTES
    if mode == "selective":
        return _selective(shape)
    hidden, width = shape.model.hidden, shape.width
    attention = (2 * hidden + 2 * shape.keys) * width + 4 * shape.model.heads
    if shape.exchanged:
        attention += hidden * width
    inner = 4 * shape.model.ffn * width
    dropped = 2 * hidden if shape.model.dropout else 0
    return 2 * norm_kept(shape) + shape.positions * (attention + inner + dropped) // shape.tp


def _selective(shape: Shape) -> int:
    """Input; outputs of q, k, v, attention, gate and up; of o and down, which are sums before ranks of tp meet."""
    hidden, keys = shape.model.hidden, shape.keys
    divided = (3 * hidden + 2 * keys + 2 * shape.model.ffn) * shape.width + 4 * shape.model.heads
    if shape.exchanged:
        divided += (2 * hidden + 2 * keys) * shape.width
    return shape.positions * (divided // shape.tp + 2 * hidden * shape.width) + GENERATOR_BYTES


def block_working(shape: Shape, mode: str) -> int:
    """What a block's backward pass has beside what all blocks keep: gradients, and all that is computed again."""
    if mode == "none":
        return _block_gradients(shape)
    again = block_kept(shape, "none") - (
        0 if shape.upcast else shape.stream_bytes
    )  # its input is kept already
    if mode == "full":
        return _block_gradients(shape) + again
    outputs = _selective(shape) - GENERATOR_BYTES - shape.stream_bytes
    down = shape.positions * shape.model.hidden * shape.width  # its output, of no use any more
    return _block_gradients(shape) + again - outputs + down


def _block_gradients(shape: Shape) -> int:
    """Of the stream, and of gate and up; or of the product of these, and of the weight behind it."""
    inner = shape.positions * shape.model.ffn * shape.width // shape.tp
    weight = shape.model.hidden * shape.model.ffn * shape.width // shape.tp
    return shape.stream_bytes + inner + max(inner, weight)


def products_bytes(shape: Shape) -> int:
    """Gradients of the outputs of a block's seven products, where the weights' part is put off."""
    elements = 3 * shape.model.hidden + 2 * shape.keys + 2 * shape.model.ffn
    return shape.positions * elements * shape.width // shape.tp


def embedding_kept(shape: Shape) -> int:
    """Nothing but a mask of dropout: the embedding keeps token ids, which the batch is counted with."""
    return shape.stream_bytes // shape.width if shape.model.dropout else 0


def head_kept(shape: Shape) -> int:
    """The last norm's, logits, and a few numbers a target."""
    return norm_kept(shape) + logits_bytes(shape) + TARGET_BYTES * shape.positions


def logits_bytes(shape: Shape) -> int:
    """T x V / N."""
    return shape.positions * shape.columns * shape.width


def loss_working(shape: Shape) -> int:
    """The gradient of the logits, and some rows of them in fp32: made so, their softmax, and that of rows before."""
    rows = min(shape.positions, LOSS_ROWS)
    copies = 1 + (shape.width < 4) + (shape.positions > rows)
    return logits_bytes(shape) + copies * rows * shape.columns * 4


def head_working(shape: Shape) -> int:
    """Behind the loss: gradients of logits, of the head's weight and of its input; or the last norm's, in fp32."""
    product = logits_bytes(shape) + table_bytes(shape) + shape.positions * shape.model.hidden * shape.width
    inside = 3 * shape.width if shape.fused else 24
    return max(norm_kept(shape) + product, shape.positions * shape.model.hidden * inside)


def embedding_working(shape: Shape) -> int:
    """Gradients of the embedding's output and, dense, of its weight."""
    return shape.stream_bytes + table_bytes(shape)


def tied_waiting(shape: Shape, *, at_the_end: bool) -> int:
    """A tied table's: its gradient as a head waits for that as an embedding, and the sum of both is a third."""
    return (2 if at_the_end else 1) * table_bytes(shape) if shape.model.tied_embedding else 0


def table_bytes(shape: Shape) -> int:
    """A matrix of the vocabulary's."""
    return shape.columns * shape.model.hidden * shape.width
