import pytest

from launcher.errors import UsageError
from launcher.tune.ledger import Ledger
from launcher.tune.trials import Outcome, Trial

DONE = Trial(
    {"train.micro_batch": "2"}, 10, 1.5, Outcome("ok", step_s=1.0, tokens_per_s=2.0, peak_bytes=3, run="/r")
)
OPEN = Trial({"train.micro_batch": "4"}, 20, None)


def ledger(folder, recipe="recipe", hosts=("a 2",), steps=8):
    return Ledger.of(folder / "tune", recipe, hosts, steps)


def test_what_was_begun_with_stays(tmp_path):
    """With its outcomes and in its order, whatever would be chosen today; more are added when more are wanted."""
    ledger(tmp_path).write([OPEN, DONE])
    new = Trial({"train.micro_batch": "8"}, 30, None)
    fresh = [new, Trial(DONE.keys, 11, 1.0)]
    assert ledger(tmp_path).resumed(fresh, 2) == [OPEN, DONE]
    assert ledger(tmp_path).resumed(fresh, 3) == [OPEN, DONE, new]
    assert ledger(tmp_path / "other").resumed(fresh, 1) == [new]


@pytest.mark.parametrize("other", [{"recipe": "another"}, {"hosts": ("a 4",)}, {"steps": 9}])
def test_trials_of_something_else(tmp_path, other):
    """Numbers that cannot be compared are not mixed: the folder is named, and what to do."""
    ledger(tmp_path).write([DONE])
    with pytest.raises(UsageError, match="--dir"):
        ledger(tmp_path, **other).resumed([DONE], 1)


def test_a_damaged_ledger(tmp_path):
    """Is told, and not written over."""
    ledger(tmp_path).write([DONE])
    (tmp_path / "tune" / "tune.json").write_text("{")
    with pytest.raises(UsageError, match=r"tune\.json cannot be read"):
        ledger(tmp_path).resumed([DONE], 1)
