"""The recipe that `distperf init` writes: every section, with comments, ready to be changed."""

STARTER = """\
# A distperf recipe. `distperf launch FILE` runs it; `distperf schema` and docs/recipe.md explain every key.
name: my-run                    # the beginning of the run's id

model:
  preset: llama-12m             # llama-1m, -3m, -12m, -28m, -110m, -350m, -1b, -3b, -8b, -13b, -34b, -70b
  # layers: 8                   # a key beside the preset overrides that one size. Without a preset:
  # family: llama               # layers, hidden, heads and ffn are wanted too. Or, in place of all this:
  # factory: my_models:build    # a function of your own (args: {...}, vocab: N), or
  # hf: path/to/folder          # a folder with a config.json of transformers

data:
  text: ["corpus/*.txt"]        # or, in place of text: tokens, a list of folders of shards; synthetic: true;
  # mixture: [{path: shards/wiki, weight: 0.7}, {path: "books/*.txt", weight: 0.3}]      # sources by weight; or
  # factory: my_data:build      # a function of your own that returns a torch Dataset (args: {...})
  field: text                   # of .jsonl and .parquet, what holds a document's text
  tokenizer: byte               # or the path of a tokenizers JSON file
  seq_len: 256                  # tokens
  boundary: mask                # no loss on the first token of a document; or predict
  workers: 0                    # processes of a rank that read ahead
  worker_timeout_s: 25          # how long one of them may owe a batch
  validation: null              # 0.01: a share that is held back for eval; or a list of other files

train:
  steps: 200
  global_batch: 64              # sequences of one step, over all ranks
  micro_batch: auto             # sequences of one forward on one rank
  seed: 1
  grad_clip: 1.0                # null: no clipping
  compile: false                # layers by torch.compile
  check_replicas_every: 100     # steps between comparisons of what ranks must hold equal; 0: never

optimizer:
  name: adamw
  lr: 3e-4
  betas: [0.9, 0.95]
  eps: 1e-8
  weight_decay: 0.1
  schedule:
    name: cosine                # constant, cosine, linear or wsd
    warmup_steps: 20
    decay_steps: auto
    min_lr: 0
  groups: []                    # exceptions: [{match: ["embed_tokens.*"], lr_scale: 0.1, weight_decay: 0}]

precision: bf16                 # fp32, fp16 or fp8

parallel:
  zero: 2                       # 0: nothing divided; 1: optimizer state; 2: gradients too; 3: parameters too
  dp_shard: auto                # ranks that it is divided by, each with samples of its own
  dp_replicate: 1               # copies of what dp_shard ranks hold together
  tp: 1                         # ranks that share every layer
  cp: 1                         # ranks that share every sequence
  cp_method: ulysses            # or ring
  pp: 1                         # pipeline stages
  pp_schedule: 1f1b             # gpipe, 1f1b, interleaved_1f1b, zero_bubble, zbv or dualpipev
  pp_layers: auto               # or layers of each stage, as a list

offload:
  optimizer: none               # cpu or nvme: where its state rests; exact, and slower; auto: what fits
  optimizer_fraction: 1.0       # share of that state
  params: none                  # where weights and gradients are, with zero: 3: none, cpu or nvme
  path: null                    # for nvme or auto: a folder on the drive, or a list of such

activation_checkpoint: none     # selective or full: less memory, more arithmetic; auto: what fits

hardware:                       # for `distperf plan`; what is null is found, or looked up
  device: null                  # H100, A100, ... or cpu
  memory_gib: null              # of a device, or of a node with cpu
  flops_per_s: null             # of a rank
  link_bytes_per_s: null        # of a rank, inside a host
  network_bytes_per_s: null     # of a rank, between hosts
  drive_bytes_per_s: null       # of a rank, to and from offload.path

checkpoint:
  every_steps: 50               # 0: only after the last step
  save_last: true
  keep: 3                       # newest ones; older ones are removed
  keep_every: 0                 # 1000: those of steps 1000, 2000, ... stay for good
  keep_best: null               # eval_loss or loss: the one with the lowest stays too
  async: true                   # written beside training, which stops for a copy to host memory
  on_error: continue            # or stop: when one cannot be written
  dir: null                     # default: checkpoints/ of the run; on several nodes, one folder that all of them see
  memory:                       # beside the disk: what a restart goes on from when a rank or a node dies
    every_steps: 0              # 0: none
    copies: 1                   # on the next node, or several
    dir: /dev/shm

eval:
  every_steps: 0                # 0: never; needs data.validation
  batches: 10                   # as many samples as so many steps train on; all: whatever is held back
  micro_batch: auto

launch:
  nproc: auto                   # ranks per node where the hostfile gives no slots
  max_restarts: 3
  spares: 0                     # hosts at the hostfile's end that wait to take a lost one's place
  min_nodes: all                # or a number: go on with as few
  heartbeat_timeout_s: 10
  lease_s: 25                   # without the controller for this long, a node ends its ranks
  stall_timeout_s: auto         # without a step for this long, a run is stalled: stacks are taken, then a restart
  grace_s: 30                   # between SIGTERM and SIGKILL
  warm_start: auto              # one process a node imports torch and forks the ranks
  log_limit_bytes: null         # most bytes kept of each rank's log; null: all
  env: {}                       # NAME: value, for every rank
  env_secret: []                # names taken from your environment and never written anywhere
  setup: []                     # shell lines on every node before the ranks: ["source env/bin/activate"]
  python: auto
  transport: null               # a way of your own to reach hosts: docs/transports.md
  sync:                         # code that goes along to nodes which do not see it
    source: null                # a folder here, as .; ranks run in a copy of what git does not ignore
    exclude: []                 # patterns of what stays here: ["data", "*.bin"]
    limit_mib: 100              # more is refused
    keep: false                 # leave the copies on the nodes
  workdir: .

slurm:                          # what `distperf sbatch` asks for; null is left to the cluster
  partition: null
  account: null
  qos: null
  time: null                    # 12:00:00 or 2-00:00:00
  nodes: 1
  gpus: null                    # of each node, one rank each; null: a CPU node
  cpus: null                    # of each rank
  mem: null                     # of each node
  constraint: null
  extra: []                     # more options: ["--exclusive"]
  setup: []                     # shell lines before the launch: ["module load cuda"]
  signal: USR1                  # or USR2, TERM
  signal_s: 120                 # so long before the time limit: save, end, and be queued again
  requeue: true
  agents: srun                  # ssh: where there is no srun
  container:                    # ranks run in it, by pyxis
    image: null
    mounts: []                  # ["/data:/data:ro"]
    options: []                 # more of pyxis's

run:
  share: owner                  # group: members of the folder's group may watch

report:
  prometheus: null              # a port (on loopback) or host:port where Prometheus finds metrics
  tensorboard: false            # true: curves into the run's folder
  wandb: null                   # {project: NAME}, and entity, mode
  mlflow: null                  # {experiment: NAME}, and uri
  command: null                 # a shell line run when the run stalls, fails, restarts or ends
  webhook: null                 # a URL that the same is posted to, as JSON
"""
