"""Options of the launchers that a run may come from, and what becomes of each. Tables only.

An option's entry says what it is for us: `flag` takes no value; note is what the report says of it where no function
of launchline.py makes more of it.
"""

from __future__ import annotations

from dataclasses import dataclass

from launcher.imports.deepspeed_keys import EXPORT
from launcher.imports.findings import Fate


@dataclass(frozen=True)
class Option:
    """One option of a launcher. fate None: launchline.py decides by its value."""

    fate: Fate | None
    note: str = ""
    flag: bool = False


def _free(note: str, flag: bool = False) -> Option:
    return Option(Fate.NEEDLESS, note, flag)


def _instead(note: str, flag: bool = False) -> Option:
    return Option(Fate.INSTEAD, note, flag)


_USED, _SWITCH = Option(None), Option(None, flag=True)
_PORT = _free("every attempt has a rendezvous and a port of its own")
_NODE = _free("one command starts every node")
_LOGS = _free("every rank's output is in the run's logs/, and merged on the screen")

DEEPSPEED = {
    "hostfile": _USED, "include": _USED, "exclude": _USED, "num_nodes": _USED, "num_gpus": _USED,
    "ssh_port": _USED, "launcher_args": _USED, "venv_script": _USED, "module": _SWITCH,
    "master_addr": _free("ranks meet at node 0, at the address that SSH came in by"),
    "master_port": _PORT,
    "node_rank": _NODE,
    "launcher": _free("SSH, or srun inside an allocation of SLURM's"),
    "force_multi": _free("a hostfile always means SSH", True),
    "no_local_rank": _free("ranks find LOCAL_RANK in their environment; no argument is added", True),
    "no_ssh": _free("inside an allocation of SLURM's, srun is used", True),
    "no_ssh_check": _free("hosts are always checked before the start", True),
    "no_python": _instead("a script is run by python; name a Python file", True),
    "enable_each_rank_log": _LOGS,
    "save_pid": _free("`distperf ps` and `distperf stop` know the run", True),
    "bind_cores_to_rank": _instead("not available: ranks share a node's cores", True),
    "bind_core_list": _instead("not available: ranks share a node's cores"),
    "autotuning": _instead("`distperf tune` measures the plan's best candidates"),
    "elastic_training": _instead("launch.min_nodes and launch.spares", True),
    "min_elastic_nodes": _instead("launch.min_nodes"),
    "max_elastic_nodes": _instead("launch.spares: hosts beyond those that hold ranks"),
}  # fmt: skip

TORCHRUN = {
    "nnodes": _USED, "nproc_per_node": _USED, "max_restarts": _USED, "module": _SWITCH,
    "standalone": _free("without a hostfile a run is this machine's", True),
    "rdzv_backend": _PORT, "rdzv_endpoint": _PORT, "rdzv_id": _PORT, "rdzv_conf": _PORT,
    "master_port": _PORT, "master_addr": _free("ranks meet at node 0, at the address that SSH came in by"),
    "node_rank": _NODE,
    "local_addr": _free("the address that SSH came in by"),
    "monitor_interval": _free("a rank's end is seen at once"),
    "start_method": _free("ranks are programs of their own; launch.warm_start forks them after the imports"),
    "role": _free("there is one role"),
    "log_dir": _LOGS, "redirects": _LOGS, "tee": _LOGS, "local_ranks_filter": _LOGS, "logs_specs": _LOGS,
    "duplicate_stdout_filters": _LOGS, "duplicate_stderr_filters": _LOGS,
    "event_log_handler": _free("the run's events.jsonl has every event"),
    "no_python": _instead("a script is run by python; name a Python file", True),
    "run_path": _instead("a script is run by its path", True),
    "numa_binding": _instead("not available: ranks share a node's cores"),
    "signals_to_handle": _free("SIGINT, SIGTERM and SIGHUP end the run with a last checkpoint"),
    "virtual_local_rank": _instead("ranks see all devices of their node's slots", True),
}  # fmt: skip

ACCELERATE = {
    "config_file": _USED, "num_processes": _USED, "num_machines": _USED, "mixed_precision": _USED, "module": _SWITCH,
    "zero_stage": _USED, "gradient_accumulation_steps": _USED, "gradient_clipping": _USED,
    "deepspeed_config_file": _USED, "deepspeed_hostfile": _USED, "max_restarts": _USED, "gpu_ids": _USED,
    "machine_rank": _NODE,
    "main_process_ip": _free("ranks meet at node 0, at the address that SSH came in by"),
    "main_process_port": _PORT, "rdzv_backend": _PORT, "rdzv_conf": _PORT,
    "multi_gpu": _free("the hosts' slots say how many", True), "cpu": _free("by the devices there are", True),
    "use_deepspeed": _free("parallel.zero says it", True), "use_fsdp": _free("parallel.zero says it", True),
    "same_network": _free("nodes are reached by SSH", True),
    "deepspeed_multinode_launcher": _free("SSH, or srun inside an allocation of SLURM's"),
    "dynamo_backend": _instead("train.compile: layers by torch.compile"),
    "offload_optimizer_device": _instead("offload.optimizer, by hand"),
    "offload_param_device": _instead("offload.params, by hand"),
    "zero3_init_flag": _free("weights are made where they are kept"),
    "zero3_save_16bit_model": _free(EXPORT),
    "enable_cpu_affinity": _instead("not available: ranks share a node's cores", True),
    "debug": _free("a stalled run names the collective that ranks wait in", True),
    "quiet": _free("launch --quiet", True),
    "num_cpu_threads_per_process": _instead("launch.env: {OMP_NUM_THREADS: N}; 1 where ranks share a node"),
    "no_python": _instead("a script is run by python; name a Python file", True),
    "tpu": _instead("not available: TPUs", True), "main_training_function": _free("a script is run as it is"),
}  # fmt: skip
