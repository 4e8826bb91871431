"""Rules between keys: what is refused, where, and what is not."""

import pytest

BASE = """\
model: {preset: llama-1m}
data: {text: [a.txt]}
train: {steps: 100, global_batch: 32}
"""


@pytest.mark.parametrize(
    ("model", "place", "words"),
    [
        ("{}", "1:1", "takes a preset, or family"),
        ("{args: {a: 1}}", "1:15", "model.args are the arguments of model.factory, which is not given"),
        ("{factory: build, vocab: 300}", "1:18", "it takes package.module:function"),
        ("{factory: 'a.b:build'}", "1:1", "missing key model.vocab"),
        (
            "{factory: 'a.b:build', vocab: 300, layers: 2}",
            "1:51",
            "model.layers cannot stand beside model.factory",
        ),
        ("{factory: 'a:b', vocab: 300, args: [1]}", "1:43", "it takes a mapping of argument names to values"),
        ("{factory: 'a:b', vocab: 300, args: {a-b: 1}}", "1:43", "'a-b', which is no name of an argument"),
        ("{factory: 'a:b', vocab: 300, hf: c}", "1:41", "model.hf cannot stand beside model.factory"),
        ("{preset: llama-1m, frozen: norm}", "1:35", "it takes a list: [norm]"),
        ("{layers: 2}", "1:1", "takes a preset, or family"),
        ("{family: llama, layers: 2}", "1:1", "missing key model.hidden, model.heads, model.ffn"),
        ("{family: llama, layers: 2, hidden: 60, heads: 8, ffn: 9}", "1:54", "must divide model.hidden, 60"),
        (
            "{family: llama, layers: 2, hidden: 60, heads: 4, ffn: 9}",
            "1:54",
            "must be even for rotary positions, not 15",
        ),
        (
            "{family: llama, layers: 2, hidden: 64, heads: 8, ffn: 9, kv_heads: 3}",
            "1:75",
            "must divide model.heads, 8",
        ),
        ("{preset: llama-8b, heads: 4}", "1:34", "model.kv_heads is 8; it must divide model.heads, 4"),
        ("{preset: llama-9b}", "1:17", "it takes llama-1m, "),
        ("{preset: llama-1m, vocab: 256}", "1:34", "the byte tokenizer has 257 ids"),
        ("{preset: llama-1m, tied_embedding: yes}", "1:43", "write true, without quotes"),
    ],
)
def test_models_that_cannot_be(problems, model, place, words):
    """Each is refused at the value to change, or at the section where something is missing."""
    (line,) = problems(BASE.replace("{preset: llama-1m}", model))
    assert line.startswith(f"r.yaml:{place}: ")
    assert words in line


@pytest.mark.parametrize(
    ("data", "place", "words"),
    [
        ("{}", "2:1", "exactly one of text, tokens, mixture, factory, synthetic; none is given"),
        ("{seq_len: 3}", "2:1", "none is given"),
        ("{text: [a], tokens: [b]}", "2:1", "text and tokens are given"),
        ("{text: [a], synthetic: true}", "2:1", "text and synthetic are given"),
        ("{text: []}", "2:14", "empty list"),
        ("{tokens: []}", "2:16", "empty list"),
        ("{text: [a, [b]]}", "2:18", "data.text[1] is a list; it takes a path"),
        ("{text: [a, ]}", None, ""),
        ("{text: [~]}", "2:15", "data.text[0] is ~"),
        ("{text: {a: b}}", "2:14", "data.text is a mapping; it takes a list"),
    ],
)
def test_sources_of_data(problems, load, data, place, words):
    """Exactly one, and it names something."""
    text = BASE.replace("{text: [a.txt]}", data)
    if place is None:
        load(text)
        return
    (line,) = problems(text)
    assert line.startswith(f"r.yaml:{place}: ")
    assert words in line


@pytest.mark.parametrize(
    ("parallel", "words"),
    [
        (
            "{cp_method: ring}",
            "4:23: parallel.cp_method is about ranks that share sequences, but parallel.cp is 1",
        ),
        (
            "{cp: 8}",
            "4:16: parallel.cp is 8; with cp_method ulysses it must divide a rank's heads, 4 of queries",
        ),
        ("{cp: 3, cp_method: ring}", "data.seq_len is 1024, not a multiple of 3 ranks x 2 pieces (ring)"),
    ],
)
def test_sequences_that_ranks_cannot_share(problems, parallel, words):
    """The place is the key to change, or the section where a default does not fit."""
    (line,) = problems(BASE + f"parallel: {parallel}\n")
    assert words in line


@pytest.mark.parametrize(
    ("parallel", "words"),
    [
        ("{tp: 3}", "4:16: parallel.tp: 3 ranks cannot divide model.heads (4), "),
        ("{tp: 8}", "8 ranks cannot divide model.heads (4), model.kv_heads (4) equally; it takes 1, 2 or 4"),
        (
            "{tp: 4, cp: 512, cp_method: ring}",
            "cannot divide data.seq_len / 1024 (1) equally; it takes only 1",
        ),
    ],
)
def test_layers_that_ranks_cannot_share(problems, parallel, words):
    """What the ranks of tp do not divide is named, with the numbers that would; before anything starts."""
    (line,) = problems(BASE + f"parallel: {parallel}\n")
    assert words in line


@pytest.mark.parametrize(
    ("optimizer", "words"),
    [
        (
            "{schedule: {warmup_steps: 101}}",
            "4:38: optimizer.schedule.warmup_steps is 101; at most train.steps, 100",
        ),
        (
            "{schedule: {name: wsd, warmup_steps: 50, decay_steps: 51}}",
            "50 of warm-up and 51 of decay are more than",
        ),
        ("{schedule: {name: constant, decay_steps: 5}}", "the schedule is constant"),
        ("{groups: [{match: [], lr: 1}]}", "4:30: optimizer.groups[0].match is an empty list"),
        ("{groups: [{match: [a]}]}", "4:22: optimizer.groups[0] changes nothing"),
        (
            "{groups: [{match: [a], lr: 1, lr_scale: 2}]}",
            "optimizer.groups[0] takes lr or lr_scale, not both",
        ),
        ("{groups: [{lr: 1}]}", "missing key optimizer.groups[0].match"),
        (
            "{groups: [{match: [a], lr: 1, wd: 1}]}",
            "unknown key optimizer.groups.wd; did you mean optimizer.weight_decay?",
        ),
        ("{groups: {match: [a]}}", "optimizer.groups is a mapping; it takes a list"),
        ("{groups: [a]}", "optimizer.groups[0] is a; it takes a mapping"),
        ("{lr: 1e-5, schedule: {min_lr: 1e-4}}", "min_lr is 0.0001, above optimizer.lr, 1e-05"),
        (
            "{betas: [0.9]}",
            "optimizer.betas is a list; it takes a list of two, each a number of at least 0 and below 1",
        ),
        ("{betas: [0.9, 1]}", "optimizer.betas holds one that is 1; it takes"),
        ("{lr: 0}", "optimizer.lr is 0; it takes a number above 0"),
        ("{lr: -1e-4}", "optimizer.lr is -1e-4; it takes a number above 0"),
        ("{lr: .nan}", "a finite one"),
        ("{schedule: cosine}", "optimizer.schedule is cosine; it takes a mapping"),
    ],
)
def test_optimizers_that_cannot_be(problems, optimizer, words):
    """One line each."""
    (line,) = problems(BASE + f"optimizer: {optimizer}\n")
    assert words in line


def test_schedules_that_can_be(load):
    """Warm-up may take all of the run, and a cosine may end beyond it."""
    load(BASE + "optimizer: {schedule: {warmup_steps: 100}}\n")
    load(BASE + "optimizer: {schedule: {name: wsd, warmup_steps: 50, decay_steps: 50}}\n")
    load(BASE + "optimizer: {schedule: {decay_steps: 1000}}\n")


@pytest.mark.parametrize(
    "name",
    [
        "RANK",
        "LOCAL_RANK",
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
        "GROUP_RANK",
        "MASTER_ADDR",
        "MASTER_PORT",
        "TORCHELASTIC_RUN_ID",
        "DISTPERF_RUN_ID",
    ],
)
def test_what_the_launcher_sets_is_not_to_be_set(problems, name):
    """Neither in env nor in env_secret."""
    assert problems(BASE + f"launch: {{env: {{{name}: 1}}}}\n")[0].startswith("r.yaml:4:16: ")
    assert problems(BASE + f"launch: {{env_secret: [X, {name}]}}\n")[0].startswith("r.yaml:4:26: ")


@pytest.mark.parametrize("name", ["1A", "A-B", "A B", "''", "A=B", "\u00c4"])
def test_names_of_variables(problems, name):
    """Letters, digits and _."""
    assert any(
        "a variable's name" in line or "key must be a word" in line
        for line in problems(BASE + f"launch: {{env: {{{name}: 1}}}}\n")
    )


def test_secrets_are_not_in_env_too(problems, load):
    """A secret written down is none."""
    (line,) = problems(BASE + "launch: {env: {TOKEN: x}, env_secret: [A, TOKEN]}\n")
    assert line == "r.yaml:4:43: TOKEN is in launch.env too; keep it in one of the two"
    assert load(
        BASE + "launch: {env: {RANKS: x, MASTER: y}, env_secret: [A, TOKEN]}\n"
    ).launch.env_secret == ("A", "TOKEN")


def test_a_lease_outlives_a_missed_heartbeat(problems):
    """Otherwise a node would end its ranks before it is called unreachable."""
    (line,) = problems(BASE + "launch: {heartbeat_timeout_s: 30}\n")
    assert line.startswith("r.yaml:4:1: launch.lease_s is 25; it must be above heartbeat_timeout_s, 30")


def test_a_fixed_number_of_ranks_and_fewer_nodes(problems, load):
    """dp_shard as a number leaves nothing to resolve anew."""
    (line,) = problems(BASE + "parallel: {dp_shard: 4}\nlaunch: {min_nodes: 1}\n")
    assert line.startswith("r.yaml:5:21: launch.min_nodes is 1, but parallel.dp_shard, 4, fixes")
    assert load(BASE + "parallel: {dp_shard: 4}\nlaunch: {min_nodes: all}\n").launch.min_nodes == "all"
    assert load(BASE + "launch: {min_nodes: 1, spares: 2}\n").launch.min_nodes == 1


@pytest.mark.parametrize("schedule", ["zero_bubble", "zbv", "dualpipev"])
@pytest.mark.parametrize("mode", ["selective", "full"])
def test_a_split_backward_pass_goes_with_neither_recomputation_nor_compiling(problems, load, schedule, mode):
    """Refused before the start, each with its reason; schedules that do not split take both."""
    parallel = "parallel: {pp: 2, pp_schedule: %s}\n"
    keys = f"activation_checkpoint: {mode}\n"
    compiled = BASE.replace("steps: 100", "compile: true, steps: 100")
    first, second = problems(compiled + parallel % schedule + keys)
    assert f"train.compile is true, but {schedule} splits the backward pass" in first
    assert f"activation_checkpoint is {mode}, but {schedule} splits the backward pass, and torch" in second
    load(compiled + parallel % "1f1b" + keys)


@pytest.mark.parametrize("key", ["async"])
def test_what_does_not_work_yet_is_unknown(problems, key):
    """A key is in the schema from the day it works."""
    assert "unknown key" in problems(BASE + f"{key}: {{}}\n")[0]


@pytest.mark.parametrize("name", ["a/b", "''", ".x", "-x", "a b", "\u00e4", "x" * 101, "[a]", "~"])
def test_names_of_runs(problems, name):
    """Fit for a folder's name and for a command line."""
    assert problems(BASE + f"name: {name}\n")[0].startswith("r.yaml:4:7: name is ")


def test_keys_of_a_pipeline_that_is_not_there(problems, load):
    """They would do nothing; a default that is written out is no fault."""
    lines = problems(BASE + "parallel: {pp_schedule: zbv, pp_layers: [2, 2]}\n")
    assert lines[0].startswith("r.yaml:4:25: parallel.pp_schedule is about a pipeline, but parallel.pp is 1")
    assert lines[1].startswith("r.yaml:4:41: parallel.pp_layers is about a pipeline, but parallel.pp is 1")
    assert load(BASE + "parallel: {pp: 1, pp_schedule: 1f1b, pp_layers: auto}\n").parallel.pp == 1


@pytest.mark.parametrize(
    ("model", "axis"),
    [("{factory: 'm:f', vocab: 300}", "cp"), ("{hf: folder}", "pp"), ("{hf: folder}", "cp")],
)
def test_what_needs_to_know_the_inside_is_refused_on_models_of_ones_own(problems, load, model, axis):
    """Axes that divide layers or positions are refused before anything starts, at the axis; tp the model may know."""
    text = BASE.replace("{preset: llama-1m}", model).replace("[a.txt]", "[a.txt], tokenizer: byte")
    (line,) = problems(text + f"parallel: {{{axis}: 2}}\n")
    assert line.startswith(f"r.yaml:4:16: parallel.{axis} is 2, but nothing says how")
    assert load(text + "parallel: {tp: 2}\n").parallel.tp == 2


def test_a_factory_of_which_nobody_knows_the_layers_needs_them_said(problems, load):
    """Its stages are given by hand; by cost they cannot be."""
    text = BASE.replace("{preset: llama-1m}", "{factory: 'm:f', vocab: 300}")
    (line,) = problems(text + "parallel: {pp: 2}\n")
    assert "only model.factory knows how many layers there are; say in parallel.pp_layers" in line
    assert load(text + "parallel: {pp: 2, pp_layers: [1, 3]}\n").parallel.pp_layers == (1, 3)


def test_the_tokenizer_of_a_folder_must_be_said(problems, load):
    """A trained model must not be fed bytes because nobody named its tokenizer."""
    text = BASE.replace("preset: llama-1m", "hf: folder")
    (line,) = problems(text)
    assert line == "r.yaml:2:1: missing key data.tokenizer (beside model.hf: folder/tokenizer.json, or byte)"
    recipe = load(text, "data.tokenizer=folder/tokenizer.json")
    assert (recipe.model.hf, recipe.model.vocab) == ("folder", None)


def test_fp8_is_refused_where_its_products_are_divided_or_split(problems, load):
    """By the recipe alone, before anything starts."""
    text = BASE + "precision: fp8\n"
    load(text)
    (line,) = problems(text + "parallel: {tp: 2}\n")
    assert line == "r.yaml:4:12: precision: fp8 does not work with parallel.tp (2); take bf16, or tp: 1"
    (line,) = problems(text + "parallel: {pp: 2, pp_schedule: zbv}\n")
    assert "fp8 does not work with pp_schedule zbv, which splits the backward pass" in line


def test_evaluations_need_something_held_back(problems, load):
    """eval asks for data.validation, which a share or a list gives; synthetic data has none."""
    (said,) = problems(BASE + "eval: {every_steps: 10}\n")
    assert "nothing is held back for them; give data.validation, as 0.01" in said
    held = BASE.replace("[a.txt]", "[a.txt], validation: HELD")
    assert (
        load(held.replace("HELD", "0.05") + "eval: {every_steps: 10, batches: all}\n").data.validation == 0.05
    )
    assert load(held.replace("HELD", "[b.txt, '0.5']")).data.validation == ("b.txt", "0.5")
    for odd in ("0", "1.0", "b.txt", "[]", "'0.1'"):
        (said,) = problems(held.replace("HELD", odd))
        assert "data.validation" in said
    (said,) = problems(BASE.replace("text: [a.txt]", "synthetic: true, validation: 0.1"))
    assert "data.validation stands beside text or tokens" in said


def test_a_container_needs_an_image_and_srun(problems, load):
    """Options without an image would do nothing, and agents over SSH are started in no container."""
    (said,) = problems(BASE + "slurm: {container: {mounts: ['/a:/a']}}\n")
    assert "missing key slurm.container.image" in said
    (said,) = problems(BASE + "slurm: {agents: ssh, container: {image: a.sqsh}}\n")
    assert "slurm.container.image needs slurm.agents: srun, which starts the container; it is ssh" in said
    for mount in ("/a", "a:b", "/a:/b,/c:/d", "/a b:/c"):
        (said,) = problems(BASE + f"slurm: {{container: {{image: a, mounts: ['{mount}']}}}}\n")
        assert "it takes a mount, FROM:TO or FROM:TO:FLAGS" in said
    assert load(BASE + "slurm: {container: {image: a, mounts: ['/a:/b:ro']}}\n").slurm.container.image == "a"
