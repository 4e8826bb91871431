"""A configuration of `accelerate config` as a recipe.

Source: the fields of Accelerate's ClusterConfig and of its DeepSpeed, FSDP, Megatron and parallelism sections.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from launcher.imports.deepspeed import shown
from launcher.imports.deepspeed_keys import EXPORT
from launcher.imports.findings import Fate, Finding, Imported, Line, flat

_NODE = "one command starts every node"
_PORT = "every attempt has a rendezvous and a port of its own"
_OFFLOAD = "by hand: offload.optimizer, offload.params (with ZeRO-3) and offload.path"
_WRAP = "a layer is the unit"
_PREFETCH = "communication always overlaps with compute"

# YAML 1.1 reads `no` as false.
PRECISION = {"no": "fp32", "false": "fp32", "fp16": "fp16", "bf16": "bf16", "fp8": "fp8"}
FSDP_STAGES = {
    "FULL_SHARD": 3, "1": 3, "SHARD_GRAD_OP": 2, "2": 2, "NO_SHARD": 0, "3": 0, "HYBRID_SHARD": 3, "4": 3,
    "HYBRID_SHARD_ZERO2": 2, "5": 2,
}  # fmt: skip
SIZES = {
    "megatron_lm_config.megatron_lm_tp_degree": "parallel.tp",
    "megatron_lm_config.megatron_lm_pp_degree": "parallel.pp",
    "parallelism_config.parallelism_config_tp_size": "parallel.tp",
    "parallelism_config.parallelism_config_cp_size": "parallel.cp",
    "parallelism_config.parallelism_config_dp_shard_size": "parallel.dp_shard",
    "parallelism_config.parallelism_config_dp_replicate_size": "parallel.dp_replicate",
    "megatron_lm_config.megatron_lm_gradient_clipping": "train.grad_clip",
    "deepspeed_config.gradient_clipping": "train.grad_clip",
    "deepspeed_config.zero_stage": "parallel.zero",
}
NEEDLESS = {
    "compute_environment": "nodes are reached by SSH, or by srun",
    "debug": "a stalled run names the collective that ranks wait in",
    "machine_rank": _NODE,
    "main_process_ip": "ranks meet at node 0, at the address that SSH came in by",
    "main_process_port": _PORT,
    "main_training_function": "about notebooks and TPUs",
    "rdzv_backend": _PORT,
    "same_network": "nodes are reached by SSH",
    "use_cpu": "by the devices there are",
    "downcast_bf16": "about TPUs",
    "distributed_type": "the hosts' slots and parallel.zero say it",
    "num_machines": "the hostfile says it",
    "deepspeed_config.zero3_save_16bit_model": EXPORT,
    "deepspeed_config.deepspeed_multinode_launcher": "SSH, or srun inside an allocation of SLURM's",
    "deepspeed_config.zero3_init_flag": "weights are made where they are kept",
    "deepspeed_config.deepspeed_hostfile": "launch --hosts: the format is the same",
    "deepspeed_config.deepspeed_config_file": "import that file too: `distperf import FILE`",
    "fsdp_config.fsdp_version": "there is one implementation of ZeRO-3",
    "fsdp_config.fsdp_auto_wrap_policy": _WRAP,
    "fsdp_config.fsdp_transformer_layer_cls_to_wrap": _WRAP,
    "fsdp_config.fsdp_min_num_params": _WRAP,
    "fsdp_config.fsdp_backward_prefetch": _PREFETCH,
    "fsdp_config.fsdp_backward_prefetch_policy": _PREFETCH,
    "fsdp_config.fsdp_forward_prefetch": _PREFETCH,
    "fsdp_config.fsdp_cpu_ram_efficient_loading": "ranks read only what they own",
    "fsdp_config.fsdp_sync_module_states": "weights are made where they are kept, from one seed",
    "fsdp_config.fsdp_use_orig_params": "parameters keep their names",
    "fsdp_config.fsdp_state_dict_type": "checkpoints are sharded, and load at any world size",
    "megatron_lm_config.megatron_lm_num_micro_batches": "follows from global and micro-batch",
    "megatron_lm_config.megatron_lm_sequence_parallelism": "part of parallel.tp",
    "megatron_lm_config.megatron_lm_use_distributed_optimizer": "parallel.zero: 1 or more",
    "parallelism_config.parallelism_config_cp_comm_strategy": "parallel.cp_method: ring, or ulysses",
}
INSTEAD = {
    "deepspeed_config.offload_optimizer_device": _OFFLOAD,
    "deepspeed_config.offload_param_device": _OFFLOAD,
    "deepspeed_config.offload_optimizer_nvme_path": _OFFLOAD,
    "deepspeed_config.offload_param_nvme_path": _OFFLOAD,
    "deepspeed_config.deepspeed_exclusion_filter": "launch --exclude, in the same words",
    "deepspeed_config.deepspeed_inclusion_filter": "launch --include, in the same words",
    "deepspeed_config.deepspeed_moe_layer_cls_names": "not available: mixtures of experts",
    "fsdp_config.fsdp_offload_params": _OFFLOAD,
    "dynamo_config": "train.compile: layers by torch.compile",
    "fp8_config": "precision: fp8 has formats and scaling of its own",
    "ipex_config": "not available: Intel's extension",
    "mpirun_config": "SSH, or srun inside an allocation of SLURM's",
    "megatron_lm_config": "not available: another option of Megatron-LM's",
    "tpu_use_cluster": "not available: TPUs", "tpu_use_sudo": "not available: TPUs", "tpu_env": "not available: TPUs",
    "tpu_name": "not available: TPUs", "tpu_zone": "not available: TPUs",
    "enable_cpu_affinity": "not available: ranks share a node's cores",
    "gpu_ids": "a hostfile line has gpus=0,2; on this machine set CUDA_VISIBLE_DEVICES",
}  # fmt: skip
OFF: tuple[Any, ...] = (False, "all", "no", "NO", "none", "NONE", None, [], {}, "null")


def from_accelerate(config: Mapping[str, Any]) -> Imported:
    """The recipe that an Accelerate configuration comes to."""
    keys = flat(config)
    made: dict[str, Line] = {}
    for key, value in keys.items():
        if line := _line(keys, key, value):
            made[key] = line
    if "parallel.zero" not in {line.key for line in made.values()}:
        made[""] = Line("parallel.zero", 0, "plain data parallel, as Accelerate's without FSDP or DeepSpeed")
    findings = tuple(_finding(key, value, made.get(key)) for key, value in keys.items())
    return Imported(tuple(made.values()), findings)


def _line(keys: Mapping[str, Any], key: str, value: Any) -> Line | None:
    if key == "mixed_precision":
        return Line("precision", PRECISION.get(str(value).lower(), str(value)), key)
    if key == "num_processes":
        per_node = int(value) // max(1, int(keys.get("num_machines") or 1))
        return Line("launch.nproc", per_node, "num_processes / num_machines, where no hostfile says slots")
    if key == "fsdp_config.fsdp_sharding_strategy" and str(value).upper() in FSDP_STAGES:
        return Line("parallel.zero", FSDP_STAGES[str(value).upper()], key)
    if key == "fsdp_config.fsdp_reshard_after_forward" and isinstance(value, bool):
        return Line("parallel.zero", 3 if value else 2, key)
    if key == "fsdp_config.fsdp_reshard_after_forward" and str(value).upper() in FSDP_STAGES:
        return Line("parallel.zero", FSDP_STAGES[str(value).upper()], key)
    recompute = (
        "fsdp_config.fsdp_activation_checkpointing",
        "megatron_lm_config.megatron_lm_recompute_activations",
    )
    if key in recompute:
        return Line("activation_checkpoint", "full" if value else "none", key)
    return Line(SIZES[key], value, key) if key in SIZES and value not in OFF else None


def _finding(key: str, value: Any, line: Line | None) -> Finding:
    section = key.partition(".")[0]
    if line is not None:
        return Finding(key, value, Fate.CARRIED, f"{line.key}: {shown(line.value)}")
    if key == "deepspeed_config.gradient_accumulation_steps":
        return Finding(
            key, value, Fate.ASKED, "train.global_batch: micro-batch x this x ranks; give it with --set"
        )
    if key in NEEDLESS:
        return Finding(key, value, Fate.NEEDLESS, NEEDLESS[key])
    note = INSTEAD.get(key) or INSTEAD.get(section)
    if key in SIZES or (note and value in OFF):
        return Finding(key, value, Fate.NEEDLESS, "switched off")
    if note:
        return Finding(key, value, Fate.INSTEAD, note)
    return Finding(key, value, Fate.UNKNOWN, "not a key of Accelerate's that is known here")
