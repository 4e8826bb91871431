"""Configurations of `accelerate config`."""

import pytest
import yaml

from launcher.imports.accelerate import from_accelerate
from launcher.imports.findings import Fate

DDP = """
compute_environment: LOCAL_MACHINE
distributed_type: MULTI_GPU
downcast_bf16: 'no'
gpu_ids: all
machine_rank: 0
main_training_function: main
mixed_precision: no
num_machines: 2
num_processes: 16
rdzv_backend: static
same_network: true
tpu_env: []
tpu_use_cluster: false
tpu_use_sudo: false
use_cpu: false
"""
FSDP = """
distributed_type: FSDP
fsdp_config:
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_backward_prefetch: BACKWARD_PRE
  fsdp_cpu_ram_efficient_loading: true
  fsdp_offload_params: true
  fsdp_sharding_strategy: SHARD_GRAD_OP
  fsdp_state_dict_type: SHARDED_STATE_DICT
  fsdp_activation_checkpointing: true
  fsdp_use_orig_params: true
mixed_precision: bf16
num_processes: 4
"""
DEEPSPEED = """
distributed_type: DEEPSPEED
deepspeed_config:
  gradient_accumulation_steps: 4
  gradient_clipping: 1.0
  offload_optimizer_device: none
  offload_param_device: cpu
  zero3_init_flag: true
  zero3_save_16bit_model: true
  zero_stage: 3
mixed_precision: fp16
num_processes: 8
dynamo_backend: 'no'
"""
MESH = """
distributed_type: FSDP
fsdp_config: {fsdp_version: 2, fsdp_reshard_after_forward: true}
parallelism_config:
  parallelism_config_dp_replicate_size: 2
  parallelism_config_dp_shard_size: 4
  parallelism_config_tp_size: 2
  parallelism_config_cp_size: 1
num_processes: 16
our_own: 1
"""


@pytest.mark.parametrize(
    ("text", "lines", "counts"),
    [
        (DDP, {"precision": "fp32", "launch.nproc": 8, "parallel.zero": 0}, [2, 13, 0, 0, 0]),
        (
            FSDP,
            {"precision": "bf16", "parallel.zero": 2, "activation_checkpoint": "full", "launch.nproc": 4},
            [4, 6, 1, 0, 0],
        ),
        (DEEPSPEED, {"parallel.zero": 3, "train.grad_clip": 1.0, "precision": "fp16"}, [4, 4, 1, 1, 1]),
        (
            MESH,
            {"parallel.dp_replicate": 2, "parallel.dp_shard": 4, "parallel.tp": 2, "parallel.zero": 3},
            [6, 2, 0, 0, 1],
        ),
    ],
    ids=["ddp", "fsdp", "deepspeed", "mesh"],
)
def test_every_key_gets_a_word(text, lines, counts):
    """Keys become lines, need nothing, or are named with what to do instead; none is lost."""
    found = from_accelerate(yaml.safe_load(text))
    got = {line.key: line.value for line in found.lines}
    assert {key: got.get(key) for key in lines} == lines
    assert [found.count(fate) for fate in Fate] == counts
