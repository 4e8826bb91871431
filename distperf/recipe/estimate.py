"""How many parameters a model has, and how many bytes its state takes on a rank: pure arithmetic, term by term."""

from __future__ import annotations

from dataclasses import dataclass

from distperf.recipe.runspec import ModelFamily, ModelSpec


@dataclass(frozen=True)
class StateBytes:
    """Bytes of model state on one rank, at the peak of a step, by the words that `plan` and `status` use."""

    parameters_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    host_bytes: int = 0  # of it in host memory, where a recipe asks for that
    disk_bytes: int = 0  # on drives
    notes: tuple[str, ...] = ()  # where the engine keeps more than the table says, and why


def known_parameters(model: ModelFamily) -> int | None:
    """Number of parameters, or None for a model that only its own code knows: it has to be built to be counted."""
    return parameter_count(model) if isinstance(model, ModelSpec) else None


def parameter_count(model: ModelSpec) -> int:
    """Number of parameters of a Llama-family decoder."""
    embedding = model.vocab * model.hidden
    head = 0 if model.tied_embedding else model.vocab * model.hidden
    return embedding + model.layers * layer_parameter_count(model) + model.hidden + head


def layer_parameter_count(model: ModelSpec) -> int:
    """Number of parameters of one decoder layer."""
    kv = model.kv_heads * (model.hidden // model.heads)
    norms = 2 * model.hidden
    attention = 2 * model.hidden * model.hidden + 2 * model.hidden * kv  # q and o, k and v
    ffn = 3 * model.hidden * model.ffn  # gate, up and down
    return norms + attention + ffn


def model_state(
    count: int,
    precision: str,
    zero: int,
    shards: int,
    accumulation: int,
    *,
    pipelined: bool = False,
    reshards: bool = True,
    offloaded: bool = False,
) -> StateBytes:
    """State of one of `shards` ranks that hold n = `count` parameters; parts round up to whole parameters.

    fp32        parameters 4n (/N from ZeRO-3), gradients 4n (/N from ZeRO-2), Adam's moments 8n (/N from ZeRO-1)
    bf16, fp16  parameters 2n, gradients 2n (instead 4n, in fp32, where accumulated; /N from ZeRO-2), and fp32 master
                and moments 12n (/N from ZeRO-1)
    these with ZeRO-3: as FSDP2 keeps it: fp32 shards of parameters 4n/N and gradients 4n/N, and moments 8n/N

    ZeRO-3 without other shards runs as ZeRO-2, unless its parameters are `offloaded`, and ZeRO-2 in a pipeline as
    ZeRO-1. `reshards`: see `distperf.recipe.schedules.reshards`; without, all gathered weights are there at once.

    Source: ZeRO (arXiv:1910.02054), section 5.
    """
    notes = []
    if zero == 3 and shards == 1 and not offloaded:
        zero = 2
    if zero == 2 and pipelined:
        zero = 1
        notes.append(
            "ZeRO-2 in a pipeline keeps whole gradients, like ZeRO-1: backward passes of micro-batches interleave, so "
            "gradients are complete only after the last"
        )

    def part(bytes_each: int, divided: bool) -> int:
        return bytes_each * -(-count // (shards if divided else 1))

    is_half, half = precision != "fp32", "bf16" if precision == "fp8" else precision
    mixed = is_half and zero < 3
    gathered = 0
    if is_half and zero == 3:
        notes.append(
            f"{precision} with ZeRO-3: FSDP2 keeps its shards of parameters and gradients in fp32 (4n/N each); that is "
            f"the master copy too, and {half} copies exist only while a layer is gathered"
        )
    if zero == 3 and not reshards:
        gathered = (2 if is_half else 4) * count
        notes.append(
            f"this schedule splits the backward pass, so ZeRO-3 keeps gathered weights from forward to backward: "
            f"{gathered:,} bytes more"
        )
    return StateBytes(
        parameters_bytes=part(2 if mixed else 4, zero >= 3) + gathered,
        gradients_bytes=part(2 if mixed and accumulation == 1 else 4, zero >= 2),
        optimizer_bytes=part(12 if mixed else 8, zero >= 1),
        notes=tuple(notes),
    )
