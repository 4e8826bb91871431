"""`python -m distperf.generate`: text from a checkpoint of any mesh, or from a folder of transformers."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from distperf.contract import EXIT_INTERRUPTED
from distperf.data.tokenizer import Tokenizer, load_tokenizer
from distperf.errors import DataError, DistperfError, ModelError
from distperf.generation.decoders import Decoder, pad_left
from distperf.generation.local_ranks import run_as_ranks
from distperf.generation.opened import Opened, decoder_for, open_model
from distperf.generation.pick import Choice, pick
from distperf.process_group import Ranks, join, leave
from distperf.recipe.tensor_rules import indivisible

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class Completion:
    """What a prompt was completed to. `ended`: by the token that ends a document, which is not among `tokens`."""

    prompt: str
    tokens: tuple[int, ...]
    text: str
    ended: bool


def generate(
    decoder: Decoder, prompts: Tensor, eod: int, count: int, choice: Choice, seed: int
) -> list[list[int]]:
    """At most `count` tokens after each prompt, up to `eod`, which is the last where it came. prompts (B, S) int64.

    A sample's draws are its own: they depend on the seed and its place, not on the other prompts. Tensor-parallel
    ranks all take what rank 0 has drawn.

    Cost: the decoder's, and over ranks a broadcast of 8 * B bytes a token.
    """
    generators = [torch.Generator().manual_seed(seed + place) for place in range(len(prompts))]
    made: list[list[int]] = [[] for _ in prompts]
    going, feed = set(range(len(prompts))), prompts
    for _ in range(count):
        ids = pick(decoder.feed(feed).cpu(), choice, generators).to(prompts.device)
        if dist.is_initialized():
            dist.broadcast(ids, 0)
        for place, token in enumerate(ids.tolist()):
            if place in going:
                made[place].append(token)
        going -= {place for place in going if made[place][-1] == eod}
        if not going:
            break
        feed = ids.unsqueeze(1)
    return made


def complete(
    opened: Opened, args: argparse.Namespace, mesh: DeviceMesh | None, device: torch.device
) -> list[Completion]:
    """A completion of every prompt. Collective over the ranks of `mesh`."""
    tokenizer = load_tokenizer(_tokenizer_name(opened, args.tokenizer))
    prompts = args.prompt or [""]
    # Of an empty prompt what stands before a document: the end of the one before.
    ids = [tokenizer.prompt(text, opened.published) or [tokenizer.eod] for text in prompts]
    _refuse_foreign(ids, opened)
    model = opened.build(DTYPES[args.dtype or _precision(opened)], device, mesh)
    padded, padding = pad_left(ids, device)
    decoder = decoder_for(model, opened.family, padding, padded.shape[1] + args.max_tokens)
    choice = Choice(args.temperature, args.top_p)
    made = generate(decoder, padded, tokenizer.eod, args.max_tokens, choice, args.seed)
    return [_completion(*each, tokenizer) for each in zip(prompts, made, strict=True)]


def _completion(prompt: str, tokens: list[int], tokenizer: Tokenizer) -> Completion:
    ended = tokens[-1:] == [tokenizer.eod]
    kept = tokens[:-1] if ended else tokens
    return Completion(prompt, tuple(kept), tokenizer.decode(kept), ended)


def _precision(opened: Opened) -> str:
    return "fp32" if opened.precision == "fp32" else "bf16"


def _tokenizer_name(opened: Opened, named: str | None) -> str:
    name = named or opened.tokenizer
    if name is None:
        raise DataError(
            "it does not say which tokenizer its ids are of; name it: --tokenizer byte, or a file"
        )
    return name


def _refuse_foreign(prompts: Sequence[Sequence[int]], opened: Opened) -> None:
    largest, vocab = max(map(max, prompts)), opened.blueprint.vocab
    if largest >= vocab:
        raise DataError(
            f"the prompt has token id {largest}, but the model's vocabulary is {vocab}: another tokenizer"
        )


def main(argv: Sequence[str] | None = None) -> int:
    """0 done, 1 it cannot be generated from, 2 bad usage, 130 Ctrl-C."""
    words = sys.argv[1:] if argv is None else list(argv)
    args = _parser().parse_args(words)
    try:
        if args.as_rank:
            completions = _as_rank(args)
        else:
            opened = open_model(args.path)
            if args.nproc > 1:
                _refuse_undivided(opened, args.nproc)
                return run_as_ranks(args.nproc, ["-m", "distperf.generate", "--as-rank", *words])
            completions = complete(opened, args, None, _device())
    except DistperfError as error:
        print(f"distperf: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    _show(completions, args.json)
    return 0


def _refuse_undivided(opened: Opened, ranks: int) -> None:
    """Before ranks start, which would each say it."""
    plan = opened.blueprint.tensor_plan
    if plan is None:
        raise ModelError("--nproc: nothing says how to divide this model over ranks; take one process")
    if (problem := indivisible(ranks, plan.units)) is not None:
        raise ModelError(f"--nproc: {problem}")


def _device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _as_rank(args: argparse.Namespace) -> list[Completion]:
    """This rank's part of the work; what there is to show, on rank 0."""
    ranks = Ranks.from_env()
    device, _ = join(ranks)
    world = dist.group.WORLD
    assert world is not None, "ranks have met"
    mesh = DeviceMesh.from_group(world, device.type, mesh_dim_names=("tp",))
    completions = complete(open_model(args.path), args, mesh, device)
    leave()
    return completions if ranks.rank == 0 else []


def _show(completions: Sequence[Completion], as_json: bool) -> None:
    """On stdout: JSON, or each prompt with its completion, several apart by a line of dashes."""
    if as_json and completions:
        print(json.dumps({"schema": 1, "completions": [asdict(each) for each in completions]}))
        return
    for place, each in enumerate(completions):
        print(("---\n" if place else "") + each.prompt + each.text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("distperf generate", description="Sample text from a model.")
    parser.add_argument("path", type=Path, metavar="CKPT|EXPORT")
    parser.add_argument("--prompt", action="append", metavar="TEXT")
    parser.add_argument("--max-tokens", type=_number(int, least=1), default=100)
    parser.add_argument("--temperature", type=_number(float, least=0.0), default=1.0)
    parser.add_argument("--top-p", type=_number(float, least=0.0, most=1.0), default=1.0)
    parser.add_argument("--seed", type=_number(int, least=0), default=1)
    parser.add_argument("--nproc", type=_number(int, least=1), default=1)
    parser.add_argument("--dtype", choices=tuple(DTYPES))
    parser.add_argument("--tokenizer", metavar="byte|FILE")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--as-rank", action="store_true", help=argparse.SUPPRESS)
    return parser


def _number(kind: type[int] | type[float], least: float, most: float = math.inf) -> Callable[[str], float]:
    def number(text: str) -> float:
        value = kind(text)
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text} is not in [{least:g}, {most:g}]")
        return value

    return number


if __name__ == "__main__":
    sys.exit(main())
