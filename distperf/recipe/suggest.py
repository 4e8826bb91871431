"""Which key was meant by one that does not exist."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence

# What other tools, or common speech, call our keys.
ALIASES = {
    "model.layers": "n_layers num_layers num_hidden_layers n_layer depth",
    "model.hidden": "hidden_size d_model dim n_embd embed_dim width",
    "model.heads": "n_heads num_heads num_attention_heads n_head",
    "model.kv_heads": "n_kv_heads num_kv_heads num_key_value_heads",
    "model.ffn": "intermediate_size ffn_size ffn_hidden_size d_ff mlp_hidden",
    "model.vocab": "vocab_size padded_vocab_size",
    "model.tied_embedding": "tie_word_embeddings tied_embeddings tie_embeddings",
    "model.norm_eps": "rms_norm_eps layer_norm_eps",
    "data.text": "dataset train_data data_path files",
    "data.mixture": "datasets blend data_blend mix sources data_mixture",
    "data.factory": "dataset_class dataset_factory",
    "data.workers": "num_workers dataloader_num_workers dataloader_workers",
    "data.tokenizer": "tokenizer_path tokenizer_file tokenizer_name",
    "data.seq_len": "seq_length sequence_length max_length max_seq_len max_seq_length context_length block_size",
    "train.steps": "max_steps num_steps total_steps train_steps iterations epochs num_epochs num_train_epochs",
    "train.global_batch": "batch_size global_batch_size train_batch_size",
    "train.micro_batch": "micro_batch_size per_device_batch_size per_device_train_batch_size "
    "train_micro_batch_size_per_gpu accumulation grad_accumulation gradient_accumulation_steps grad_accum_steps",
    "train.grad_clip": "clip_grad gradient_clipping max_grad_norm clip_grad_norm grad_clip_norm",
    "optimizer.lr": "learning_rate max_lr peak_lr",
    "optimizer.betas": "beta1 beta2 adam_beta1 adam_beta2",
    "optimizer.eps": "adam_epsilon epsilon",
    "optimizer.weight_decay": "wd",
    "optimizer.schedule.name": "lr_scheduler lr_scheduler_type scheduler lr_schedule lr_decay_style",
    "optimizer.schedule.warmup_steps": "warmup warmup_iters num_warmup_steps warmup_ratio lr_warmup_steps",
    "optimizer.schedule.min_lr": "lr_min min_learning_rate",
    "precision": "dtype torch_dtype mixed_precision bf16 fp16 fp32 fp8",
    "parallel.zero": "zero_stage stage zero_optimization",
    "parallel.dp_shard": "dp fsdp data_parallel data_parallel_size dp_size",
    "checkpoint.every_steps": "save_steps save_interval save_every save_freq checkpoint_every",
    "checkpoint.keep": "save_total_limit keep_last max_to_keep",
    "checkpoint.dir": "save_dir output_dir checkpoint_dir ckpt_dir",
    "launch.nproc": "nproc_per_node num_gpus gpus_per_node ngpus",
    "launch.env": "environment env_vars",
    "launch.workdir": "cwd working_dir chdir",
    "script": "entrypoint command",
}
BY_ALIAS = {alias: path for path, aliases in ALIASES.items() for alias in aliases.split()}


def nearest(section: str, key: str, known: Sequence[str]) -> str | None:
    """The dotted path, of those `known`, that `key` in `section` ("" at the top) was meant to be, or None."""
    word = key.lower().replace("-", "_").replace(" ", "_")
    siblings = {path.rpartition(".")[2]: path for path in known if path.rpartition(".")[0] == section}
    leaves = {path.rpartition(".")[2]: path for path in reversed(known)}
    if word in siblings:
        return siblings[word]
    if word in BY_ALIAS:
        return BY_ALIAS[word]
    if word in leaves:
        return leaves[word]
    return _similar(word, siblings, 0.65) or _similar(word, leaves, 0.8)


def _similar(word: str, paths: Mapping[str, str], cutoff: float) -> str | None:
    found = difflib.get_close_matches(word[:60], list(paths), n=1, cutoff=cutoff)
    return paths[found[0]] if found else None


def advice(section: str, key: str, known: Sequence[str]) -> str:
    """What an error on an unknown `key` says after naming it."""
    if path := nearest(section, key, known):
        return f"did you mean {path}?"
    siblings = [path.rpartition(".")[2] for path in known if path.rpartition(".")[0] == section]
    return f"allowed {f'in {section}' if section else 'here'}: {', '.join(siblings)}"
