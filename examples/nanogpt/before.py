"""Trains a character-level GPT on the text of model.py. `diff before.py after.py` is what distperf asks for."""

import math
from pathlib import Path

import torch
import torch.distributed as dist
from model import GPT
from torch.nn.parallel import DistributedDataParallel as DDP

steps, save_every = 30, 15
batch, length, accumulation = 4, 32, 2
peak_lr, warmup, weight_decay, grad_clip = 3e-3, 5, 0.1, 1.0
folder = Path("checkpoints")
folder.mkdir(exist_ok=True)

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(1337 + rank)

text = Path(__file__).with_name("model.py").read_text()
characters = sorted(set(text))
data = torch.tensor([characters.index(character) for character in text])


def some_text():
    """Tokens, and those that follow them."""
    starts = torch.randint(len(data) - length, (batch,)).tolist()
    return tuple(torch.stack([data[at + shift :][:length] for at in starts]) for shift in (0, 1))


def lr_at(step):
    """Up to the peak, then down to a tenth of it."""
    if step < warmup:
        return peak_lr * (step + 1) / warmup
    done = (step - warmup) / (steps - warmup)
    return peak_lr * (0.1 + 0.45 * (1 + math.cos(math.pi * done)))


model = GPT(len(characters), length)
decayed = [p for p in model.parameters() if p.dim() > 1]
others = [p for p in model.parameters() if p.dim() < 2]
groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
optimizer = torch.optim.AdamW(groups, lr=peak_lr, betas=(0.9, 0.95))
model = DDP(model)

for step in range(steps):
    for group in optimizer.param_groups:
        group["lr"] = lr_at(step)
    for _ in range(accumulation):
        loss = model(*some_text())
        (loss / accumulation).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
    optimizer.step()
    optimizer.zero_grad()
    if rank == 0 and (step + 1) % 5 == 0:
        print(f"step {step + 1}  loss {loss.item():.4f}", flush=True)
    if rank == 0 and (step + 1) % save_every == 0:
        torch.save([model.module.state_dict(), optimizer.state_dict()], folder / f"{step + 1}.pt")

dist.destroy_process_group()
