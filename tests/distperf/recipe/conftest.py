"""Recipe files for tests, in a folder that is the current one."""

from collections.abc import Callable
from pathlib import Path

import pytest

from distperf.errors import RecipeError
from distperf.recipe.load import load_recipe
from distperf.recipe.schema import Recipe


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Writes a file into the current folder; returns its name."""
    monkeypatch.chdir(tmp_path)

    def write_file(text: str, name: str = "r.yaml") -> str:
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_bytes(text.encode())
        return name

    return write_file


@pytest.fixture
def load(write: Callable[..., str]) -> Callable[..., Recipe]:
    """Loads a recipe's text, with --set flags."""
    return lambda text, *sets: load_recipe(write(text), sets)


@pytest.fixture
def problems(load: Callable[..., Recipe]) -> Callable[..., list[str]]:
    """What loading a text complains about, one line each."""

    def problems_of(text: str, *sets: str) -> list[str]:
        with pytest.raises(RecipeError) as caught:
            load(text, *sets)
        assert all(problem and "\n" not in problem for problem in caught.value.problems)
        assert str(caught.value) == "\n".join(caught.value.problems)
        assert caught.value.exit_code == 2
        return list(caught.value.problems)

    return problems_of
