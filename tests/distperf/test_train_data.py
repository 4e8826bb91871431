"""Data problems stop a run at its start, on every rank, in words."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest
import torch.distributed as dist
from ranks import run_ranks
from torch.distributed.distributed_c10d import _get_default_store
from train_program import TINY, data_spec, make_spec, training

from distperf.data.together import open_data
from distperf.errors import DataError
from distperf.process_group import Ranks
from distperf.recipe.runspec import DataSpec

pytestmark = pytest.mark.slow


def text(pattern: str) -> DataSpec:
    return data_spec(text=(pattern,))


@pytest.mark.parametrize(
    ("content", "said"),
    [(None, r"missing.txt"), ("x" * 16 * 3, "3 samples do not fill one global batch of 12")],
)
def test_missing_and_too_little_data_is_refused_i06(tmp_path, content, said):
    """I06: every rank ends with 1 and the same words, both numbers among them; nobody waits for anybody."""
    file = tmp_path / "missing.txt"
    if content:
        file.write_text(content)
    spec = make_spec(tmp_path, world=2, data=text(str(file)), model=dataclasses.replace(TINY, vocab=257))
    with training(spec, DISTPERF_CACHE=str(tmp_path)) as ranks:
        assert ranks.wait(30) == [1, 1]
    assert [said in rank.of("error")[0]["message"] for rank in ranks.ranks] == [True, True], ranks.output
    assert "Traceback" not in ranks.output


def open_on_a_node_of_its_own(folder: str) -> str:
    """Each rank is a node with files of its own; rank 1's are missing when `folder` has none for it."""
    rank = dist.get_rank()
    os.chdir(Path(folder) / str(rank))
    os.environ["DISTPERF_CACHE"] = str(Path(folder) / "cache" / str(rank))
    place = Ranks(rank, 2, 0, rank, 2, "", 0, False)
    with pytest.raises(DataError) as caught:
        open_data(text("*.txt"), 257, place, _get_default_store())
    return str(caught.value)


@pytest.mark.parametrize(
    ("other", "said"), [("text two ", "ranks have different data: rank 0"), (None, r"*.txt")]
)
def test_nodes_with_different_files_are_refused(tmp_path, other, said):
    """Other text, or none, on one node: all nodes hear of it."""
    for rank, content in enumerate(("text one ", other)):
        (tmp_path / str(rank)).mkdir()
        if content:
            (tmp_path / str(rank) / "a.txt").write_text(content * 50)
    first, second = run_ranks(open_on_a_node_of_its_own, 2, str(tmp_path))
    assert first == second
    assert said in first
