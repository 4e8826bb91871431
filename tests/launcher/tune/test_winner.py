from distperf.recipe.load import load_recipe
from launcher.tune.winner import recipe_of

BASE = """
model: {preset: llama-1m}
data: {synthetic: true, seq_len: 16}
train: {steps: 20, global_batch: 12}
parallel: {zero: 1}
"""


def test_it_loads_to_what_was_tuned(tmp_path):
    """Flags of the command line, whole sections among them, and the keys that won on top: the same, as a file."""
    (tmp_path / "r.yaml").write_text(BASE)
    (tmp_path / "tune").mkdir()
    flags = [
        "optimizer.lr=3e-4",
        "parallel={zero: 3, tp: 2}",
        'launch.env={A: "010"}',
        "train.grad_clip=null",
    ]
    keys = ["parallel.zero=2", "parallel.tp=1", "train.micro_batch=4", "offload.path=null"]
    text = recipe_of([*flags, *keys], "../r.yaml", "one\ntwo")
    assert text.startswith("# one\n# two\nextends: ../r.yaml\n")
    (tmp_path / "tune" / "best.yaml").write_text(text)
    found = load_recipe(tmp_path / "tune" / "best.yaml")
    wanted = load_recipe(tmp_path / "r.yaml", [*flags, *keys, "name=best"])
    assert found.model_dump() == wanted.model_dump()
    assert found.launch.env == {"A": "010"}
