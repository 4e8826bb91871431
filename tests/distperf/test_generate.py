"""Text from models: with a cache as without, in a batch as alone, on several ranks as on one."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import pytest
import torch
from train_program import TINY, data_spec, make_spec, train

from distperf.data.tokenizer_files import byte_tokenizer
from distperf.export import export
from distperf.generate import generate, main
from distperf.generation.decoders import Recomputing, pad_left
from distperf.generation.opened import decoder_for, open_model
from distperf.generation.pick import Choice
from distperf.recipe.runspec import CheckpointSpec, FactorySpec

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

BYTES = dataclasses.replace(TINY, vocab=257)
TEXT = "the cat sat on the mat. the dog sat on the log. " * 40
PROMPTS = ("the ca", "", "the dog sat on", "x")
COUNT = 12


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on text with its checkpoint, and in `out` its export."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "a.txt").write_text(TEXT)
    checkpoint = CheckpointSpec(every_steps=0, save_last=True, keep=1, dir=str(folder / "checkpoints"))
    data = data_spec(text=(str(folder / "a.txt"),))
    train(
        make_spec(folder, world=2, zero=3, steps=40, model=BYTES, data=data, checkpoint=checkpoint),
        DISTPERF_CACHE=str(folder / "cache"),
    )
    export(folder, folder / "out")
    return folder


def command(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict]:
    prompts = [word for prompt in PROMPTS for word in ("--prompt", prompt)]
    assert main([*words, *prompts, "--json", "--max-tokens", str(COUNT)]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["schema"] == 1
    return said["completions"]


def greedy(run: Path, prompts: list[str], cached: bool) -> list[list[int]]:
    opened = open_model(run)
    ids = [list(prompt.encode()) or [256] for prompt in prompts]
    padded, padding = pad_left(ids, torch.device("cpu"))
    model = opened.build(torch.float32, torch.device("cpu"), None)
    decoder = decoder_for(model, opened.family, padding, 64) if cached else Recomputing(model, padding)
    return generate(decoder, padded, 256, COUNT, Choice(temperature=0), 1)


def test_a_cache_changes_nothing(run):
    """Prompts of different lengths together, each alone, and all without a cache: the same tokens."""
    together = greedy(run, list(PROMPTS), cached=True)
    assert together == greedy(run, list(PROMPTS), cached=False)
    assert together == [greedy(run, [prompt], cached=True)[0] for prompt in PROMPTS]
    assert len({tuple(tokens) for tokens in together}) > 1


def test_an_export_says_what_its_checkpoint_says(run, capsys):
    """By distperf's own Llama, and by transformers."""
    draws = ["--temperature", "0.8", "--top-p", "0.9", "--seed", "3"]
    wanted = command(capsys, str(run), *draws)
    assert command(capsys, str(run / "out"), *draws) == wanted
    config = json.loads((run / "out/config.json").read_text())
    assert config["model_type"] == "llama"
    theirs = run / "theirs"
    theirs.mkdir()
    for path in (run / "out").iterdir():
        (theirs / path.name).symlink_to(path)
    (theirs / "config.json").unlink()
    (theirs / "config.json").write_text(
        json.dumps({**config, "model_type": "mistral", "max_position_embeddings": 26, "sliding_window": None})
    )
    assert command(capsys, str(theirs), *draws) == wanted
    assert main([str(theirs), "--prompt", "a", "--max-tokens", "26"]) == 1
    assert "take 27 positions; this model has 26" in capsys.readouterr().err
    assert main([str(theirs), "--nproc", "3"]) == 1
    assert "--nproc: 3 ranks cannot divide heads (4)" in capsys.readouterr().err


def test_ranks_share_a_model(run, capfd):
    """`--nproc 2` prints what one process prints, once."""
    words = [str(run), "--prompt", "the cat", "--max-tokens", "8", "--temperature", "0"]
    assert main(words) == 0
    alone = capfd.readouterr().out
    assert main([*words, "--nproc", "2"]) == 0
    assert capfd.readouterr().out == alone
    assert alone.startswith("the cat")


def test_a_module_of_ones_own_generates(tmp_path, capsys):
    """Without a cache, from a file of a tokenizer that its data did not name."""
    model = FactorySpec("factory", "own_models:build", {"vocab": 257, "dropout": 0.0}, 257)
    checkpoint = CheckpointSpec(every_steps=0, save_last=True, keep=1, dir=str(tmp_path / "checkpoints"))
    train(make_spec(tmp_path, steps=1, model=model, checkpoint=checkpoint))
    assert main([str(tmp_path), "--prompt", "a"]) == 1
    assert "it does not say which tokenizer its ids are of" in capsys.readouterr().err
    (tmp_path / "t.json").write_text(json.dumps(byte_tokenizer()))
    said = [
        command(capsys, str(tmp_path), "--tokenizer", name) for name in ("byte", str(tmp_path / "t.json"))
    ]
    assert said[0] == said[1]
    with pytest.raises(SystemExit) as stopped:
        main([str(tmp_path), "--top-p", "2"])
    assert stopped.value.code == 2
    assert sys.modules["own_models"]
