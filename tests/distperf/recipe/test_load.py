"""Loading recipes: files, extends, --set, names, tokenizers, dumping."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from distperf.errors import RecipeError
from distperf.recipe.load import dump_recipe, load_recipe, script_recipe

SMALL = """\
model: {preset: llama-1m}
data: {text: [a.txt]}
train: {steps: 100, global_batch: 32}
"""


def test_numbers_and_text_are_read_as_the_field_wants(load):
    """J01 and the traps of YAML: 1e-4 is a number, and the value of a variable keeps its spelling."""
    recipe = load(
        SMALL + "optimizer: {lr: 1e-4, eps: 1e-8}\n"
        "launch: {env: {A: no, B: 010, C: 12:30, D: 1.10, E: true, F: '1', G: , H: null, I: 1e-4}, grace_s: 5}\n"
    )
    assert recipe.optimizer.lr == 1e-4
    assert recipe.launch.grace_s == 5.0
    assert list(recipe.launch.env.values()) == ["no", "010", "12:30", "1.10", "true", "1", "", "null", "1e-4"]
    assert all(type(value) is str for value in recipe.launch.env.values())


def test_defaults(load):
    """What is promised of a recipe that says as little as possible."""
    recipe = load(SMALL)
    assert (recipe.name, recipe.precision, recipe.parallel.zero, recipe.train.grad_clip) == (
        "r",
        "bf16",
        2,
        1.0,
    )
    launch = recipe.launch
    assert (launch.max_restarts, launch.heartbeat_timeout_s, launch.lease_s, launch.grace_s) == (
        3,
        10,
        25,
        30,
    )
    assert (recipe.checkpoint.save_last, recipe.checkpoint.keep, recipe.checkpoint.dir) == (True, 3, None)


def test_what_is_empty_says_nothing(load):
    """A section, list or mapping with nothing after its key has its default; null turns clipping off."""
    empty = "optimizer:\nlaunch:\n  env:\n  env_secret: null\ncheckpoint: ~\n"
    assert load(SMALL + empty) == load(SMALL)
    assert load(SMALL, "train.grad_clip=null").train.grad_clip is None
    assert load(SMALL, "train.grad_clip=").train.grad_clip is None


def test_a_name_comes_from_the_file(write):
    """Only letters, digits . _ - are left of it."""
    for file, name in (
        ("my run.yaml", "my-run"),
        ("tiny-v1.2.yaml", "tiny-v1.2"),
        ("..yaml", "run"),
        (".x.yaml", "x"),
        ("\u00e4.yaml", "run"),
    ):
        assert load_recipe(write(SMALL, file)).name == name
    assert load_recipe(Path(write("name: 010\n" + SMALL))).name == "010"


def test_every_fault_is_told_at_once_in_the_order_of_the_lines(problems):
    """Unknown, misplaced, duplicate, missing, mistyped and impossible: one run of the tool tells all."""
    text = """\
learning_rate: 3e-4
model: {preset: llama-1m, heads: 5}
data: {text: a.txt, seq_len: "256"}
train:
  stpes: 100
  global_batch: many
  num-epochs: 3
precision: fp64
precision: bf16
optimizer: {lora_r: 8, schedule: {min_lr: 1}}
launch: {env: {RANK: 1, 2x: y, Z: [1]}, lease_s: 5}
"""
    assert problems(text) == [
        "r.yaml:1:1: unknown key learning_rate; did you mean optimizer.lr?",
        "r.yaml:2:34: model.heads is 5; it must divide model.hidden, 128",
        "r.yaml:3:14: data.text is a.txt; it takes a list: [a.txt]",
        "r.yaml:3:30: data.seq_len is '256'; it takes a whole number of at least 1 (write 256 without quotes)",
        "r.yaml:4:1: missing key train.steps",
        "r.yaml:5:3: unknown key train.stpes; did you mean train.steps?",
        "r.yaml:6:17: train.global_batch is many; it takes a whole number of at least 1",
        "r.yaml:7:3: unknown key train.num-epochs; did you mean train.steps?",
        "r.yaml:8:12: precision is fp64; it takes fp32, bf16, fp16 or fp8",
        "r.yaml:9:1: duplicate key precision, first at r.yaml:8:1",
        "r.yaml:10:13: unknown key optimizer.lora_r; allowed in optimizer: "
        "name, lr, betas, eps, weight_decay, schedule, groups",
        "r.yaml:10:43: optimizer.schedule.min_lr is 1, above optimizer.lr, 0.0003",
        "r.yaml:11:16: a name in launch.env is RANK, which the launcher sets itself; take it out",
        "r.yaml:11:25: a name in launch.env is '2x'; it takes a variable's name: letters, digits and _, no digit first",
        "r.yaml:11:35: launch.env.Z is a list; it takes text (quote it)",
    ]


def test_missing_sections_are_missed_at_the_top(problems):
    """A recipe that says nothing of model and train."""
    found = problems("data: {synthetic: true}\n")
    assert [line.split(" (")[0] for line in found] == [
        "r.yaml:1:1: missing key model",
        "r.yaml:1:1: missing key train",
    ]


@pytest.mark.parametrize("text", ["", "# nothing\n", "\n", "~\n", "---\n"])
def test_an_empty_file_is_refused(problems, text):
    """With a way to get a first recipe."""
    (line,) = problems(text)
    assert line.startswith("r.yaml:1:1: the recipe is empty")


@pytest.mark.parametrize("text", ["just text\n", "- a\n- b\n", "42\n"])
def test_a_recipe_is_a_mapping(problems, text):
    """Anything else at the top is refused."""
    (line,) = problems(text)
    assert "a recipe is a mapping" in line


def test_byte_order_mark_and_carriage_returns(write):
    """Files of other editors say the same."""
    marked = load_recipe(write("\ufeff" + SMALL.replace("\n", "\r\n"), "r.yaml"))
    assert marked == load_recipe(write(SMALL, "r.yaml"))
    with pytest.raises(RecipeError, match=r"r.yaml:1:1: unknown key modle; did you mean model\?"):
        load_recipe(write("\ufeffmodle: 1\r\n" + SMALL))


def test_files_that_cannot_be_read(write, tmp_path):
    """Missing, a folder, not UTF-8, far too large: one line each, with a place where there is one."""
    write(SMALL)
    for path, words in (("none.yaml", "No such file"), (".", "Is a directory"), ("a\0b", "null")):
        with pytest.raises(RecipeError, match=f"cannot read recipe .*{words}"):
            load_recipe(path)
    for content in (b"name: x\nmodel: \xff\n", b"\xef\xbb\xbfname: x\nmodel: \xff\n"):
        Path("bad.yaml").write_bytes(content)
        with pytest.raises(RecipeError, match=r"^bad.yaml:2:8: not UTF-8 \(byte 0xff\)"):
            load_recipe("bad.yaml")
    Path("big.yaml").write_bytes(b"#" * 2**20)
    with pytest.raises(RecipeError, match="larger than 256 KiB"):
        load_recipe("big.yaml")


def test_a_file_that_cannot_be_read(tmp_path, monkeypatch):
    """Refused with the system's words (a folder stands for all that the system refuses, to root as well)."""
    monkeypatch.chdir(tmp_path)
    Path("r.yaml").mkdir()
    with pytest.raises(RecipeError, match=r"cannot read recipe r\.yaml: Is a directory"):
        load_recipe("r.yaml")


def test_extends_lays_one_file_over_another(write):
    """Mappings merge key by key; lists and scalars are replaced; a chain works; paths are relative to the file."""
    write("name: base\n" + SMALL + "launch: {env: {A: 1, B: 2}, env_secret: [X, Y]}\n", "lib/base.yaml")
    write(
        "extends: base.yaml\ntrain: {steps: 7}\nlaunch: {env: {B: 3}, env_secret: [Z]}\n", "lib/middle.yaml"
    )
    recipe = load_recipe(
        write("extends: lib/middle.yaml\nname: top\nlaunch:\nmodel: {layers: 2}\n", "top.yaml")
    )
    assert (recipe.name, recipe.train.steps, recipe.train.global_batch) == ("top", 7, 32)
    assert recipe.launch.env == {"A": "1", "B": "3"}
    assert recipe.launch.env_secret == ("Z",)
    assert (recipe.model.preset, recipe.model.layers, recipe.extends) == ("llama-1m", 2, None)


def test_places_point_into_the_file_where_the_value_stands(write):
    """A fault of an extended file is told there, one of this file here."""
    write(SMALL + "precision: fp64\n", "lib/base.yaml")
    with pytest.raises(RecipeError) as caught:
        load_recipe(write("extends: lib/base.yaml\ntrain: {steps: x}\n", "top.yaml"))
    found = [line.split(" is ")[0] for line in caught.value.problems]
    assert found == ["top.yaml:2:16: train.steps", "lib/base.yaml:4:12: precision"]


def test_an_inherited_source_of_data_is_dropped_with_null(load, write):
    """`text: null` makes room for another source; without it both are named."""
    write(SMALL, "base.yaml")
    recipe = load("extends: base.yaml\ndata: {text: null, synthetic: true}\n")
    assert (recipe.data.text, recipe.data.synthetic) == (None, True)
    with pytest.raises(
        RecipeError,
        match="exactly one of text, tokens, mixture, factory, synthetic; text and synthetic are given",
    ):
        load("extends: base.yaml\ndata: {synthetic: true}\n")


def test_extends_in_a_circle_names_the_chain(problems, write):
    """Of any length, itself included."""
    assert (
        problems("name: x\nextends: r.yaml\n")[0] == "r.yaml:2:10: extends goes in a circle: r.yaml -> r.yaml"
    )
    write("extends: c.yaml\n", "b.yaml")
    write("extends: ./r.yaml\n", "c.yaml")
    line = problems("extends: b.yaml\n")[0]
    assert line == "c.yaml:1:10: extends goes in a circle: r.yaml -> b.yaml -> c.yaml -> r.yaml"


@pytest.mark.parametrize(
    ("value", "words"), [("none.yaml", "cannot read recipe none.yaml"), ("[a, b]", "path of one")]
)
def test_extends_of_what_is_no_recipe(problems, value, words):
    """Refused at the word that names it."""
    assert any(
        line.startswith("r.yaml:1:10: ") and words in line for line in problems(f"extends: {value}\n" + SMALL)
    )


def test_sets_go_on_top(load):
    """Scalars, lists, mappings and new sections; the last one wins."""
    recipe = load(
        SMALL,
        "train.steps=1e3",
        "train.steps=2000",
        "data.text=[b.txt, 'c d.txt']",
        "launch.env={A: no, B: '1'}",
        "launch.env.C=010",
        "launch.env.D=a=b",
        "optimizer.schedule.name=wsd",
        "name=1.10",
        "launch={grace_s: 1}",
    )
    assert (recipe.train.steps, recipe.data.text, recipe.name) == (2000, ("b.txt", "c d.txt"), "1.10")
    assert recipe.launch.env == {"A": "no", "B": "1", "C": "010", "D": "a=b"}
    assert (recipe.optimizer.schedule.name, recipe.launch.grace_s) == ("wsd", 1.0)


@pytest.mark.parametrize(
    ("flag", "words"),
    [
        ("train.steps=abc", "train.steps is abc; it takes a whole number of at least 1"),
        ("train.stpes=3", "unknown key train.stpes; did you mean train.steps?"),
        ("steps=3", "unknown key steps; did you mean train.steps?"),
        ("steps", "it takes key=value: --set train.steps=100"),
        ("=3", "it takes key=value"),
        ("train..steps=3", "it takes key=value"),
        (".=3", "it takes key=value"),
        ("", "it takes key=value"),
        ("extends=a.yaml", "extends stands in the file"),
        ("train.steps=[1", "not YAML"),
        ("train={steps: 1, steps: 2}", "duplicate key steps"),
        ("train.steps=!!int 3", "tag"),
        ("launch.env.A=#1", "reads as nothing in YAML"),
        ("precision.x=1", "precision is a mapping; it takes fp32, bf16, fp16 or fp8"),
        ("train.steps.x=1", "train.steps is a mapping"),
        ("train=3", "train is 3; it takes a mapping"),
        ("model.heads=3", "model.heads is 3; it must divide model.hidden, 128"),
        ("launch.env.MASTER_PORT=1", "which the launcher sets itself"),
        ("train.steps=\x1b", "not allowed in YAML"),
    ],
)
def test_a_wrong_set_is_named(problems, flag, words):
    """Each fault of a flag names the flag, on one line."""
    (line,) = problems(SMALL, flag)
    assert line.startswith(f"--set {flag}: " if flag.isprintable() and flag else "--set ")
    assert words in line


def test_a_script_recipe():
    """launch --script: name from the file, arguments byte for byte, --set on launch keys."""
    recipe = script_recipe(
        "jobs/train me.py", ["--lr", "010", "", "\udcff", "a: b"], ["launch.max_restarts=0"]
    )
    assert (recipe.name, recipe.script.path) == ("train-me", "jobs/train me.py")
    assert recipe.script.args == ("--lr", "010", "", "\udcff", "a: b")
    assert recipe.launch.max_restarts == 0
    with pytest.raises(RecipeError, match=r"--set train\.steps=3: train cannot stand beside script"):
        script_recipe("a.py", [], ["train.steps=3"])


def test_a_script_beside_training_keys_is_refused(problems):
    """Each such key is named, with its place."""
    found = problems("script: {path: a.py}\nmodel: {preset: llama-1m}\nprecision: bf16\n")
    assert [line.split(" beside")[0] for line in found] == [
        "r.yaml:2:1: model cannot stand",
        "r.yaml:3:1: precision cannot stand",
    ]


@pytest.mark.parametrize(
    "text",
    [
        SMALL,
        SMALL + "launch: {env: {A: 'null', B: '', C: 010, D: \"\\u2028 \\x85 \\t\", E: ' x '}}\n",
        SMALL + "train: {steps: 3, global_batch: 1, grad_clip: null}\n",
        SMALL.replace(
            "preset: llama-1m",
            "factory: 'm:f', vocab: 900, args: {a: '1', b: 1e-4, c: [~, 'null', {d: true}]}",
        ),
        SMALL + "optimizer: {groups: [{match: ['*'], lr: 1e-4}, {match: [a, b], weight_decay: 0}]}\n",
        'script: {path: a.py, args: [1, \'~\', ~, --x, "\\udcff", "\\U0001f600"]}\n',
    ],
)
def test_dump_loads_to_an_equal_recipe(write, text):
    """What the run folder keeps says all that was said."""
    recipe = load_recipe(write(text.replace(SMALL + "train", SMALL.partition("train")[0] + "train")))
    assert load_recipe(write(dump_recipe(recipe), "copy.yaml")) == recipe


def test_equal_recipes_say_the_same_wherever_they_were_written(load):
    """Order, comments and spelling of numbers do not matter; values do."""
    assert load("# c\n" + SMALL) == load(
        "train: {global_batch: 32, steps: 1e2}\n" + SMALL.partition("train")[0]
    )
    assert load(SMALL) != load(SMALL, "train.seed=2")


def tokenizer(path: str, vocab: object, added: object = ()) -> None:
    Path(path).write_text(json.dumps({"model": {"vocab": vocab}, "added_tokens": added}))


def test_vocab_from_a_tokenizer_file(write):
    """Largest id + 1, added tokens included, found in workdir; a given vocab needs no file."""
    write("", "work/x")
    tokenizer("work/t.json", {"a": 0, "b": 7}, [{"id": 9, "content": "<s>"}])
    text = SMALL.replace("[a.txt]", "[a.txt], tokenizer: t.json") + "launch: {workdir: work}\n"
    recipe = load_recipe(write(text))
    assert recipe.model.vocab == 10
    assert load_recipe(write(dump_recipe(recipe), "copy.yaml")).model.vocab == 10
    assert load_recipe(write(text), ["data.tokenizer=none.json", "model.vocab=11"]).model.vocab == 11
    tokenizer("work/t.json", [["a", -1.0], ["b", -2.0]], None)
    assert load_recipe(write(text)).model.vocab == 2


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"[]", b"3", b'{"model": 3}', b'{"model": {"vocab": "x"}}', b"\xff", b"[" * 10**5]
)
def test_a_file_that_is_no_tokenizer(write, content):
    """Refused where the recipe names it, with the way around."""
    text = SMALL.replace("[a.txt]", "[a.txt], tokenizer: t.json")
    write(text)
    Path("t.json").write_bytes(content)
    with pytest.raises(
        RecipeError,
        match=r"^r.yaml:2:34: cannot read the vocabulary of data.tokenizer t.json: .*give model.vocab$",
    ):
        load_recipe("r.yaml")
    Path("t.json").unlink()
    with pytest.raises(RecipeError, match=r"^r.yaml:2:34: .*No such file"):
        load_recipe("r.yaml")


@pytest.mark.slow
def test_loading_needs_neither_torch_nor_numpy():
    """The launcher reads recipes; and a rank reads its orders without the recipe's checkers."""
    code = (
        "import sys, distperf.recipe.runspec, distperf.recipe.mesh, distperf.recipe.batch, distperf.recipe.estimate, "
        "distperf.recipe.presets, distperf.recipe.vocab\nassert not {'pydantic', 'yaml'} & set(sys.modules)\n"
        "import distperf.recipe.load, distperf.recipe.resolve\nassert not {'torch', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
