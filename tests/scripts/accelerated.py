"""A script in the style of Accelerate's examples; its `accelerate launch` is a torchrun."""

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    set_seed(0)
    data = TensorDataset(torch.randn(64, 20), torch.randint(5, (64,)))
    loader = DataLoader(data, batch_size=4, shuffle=True)
    model = nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 5))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)

    for _ in range(2):
        for inputs, targets in loader:
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(inputs), targets)
                accelerator.backward(loss)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()

    final = accelerator.gather(loss.detach()).mean()
    if accelerator.is_main_process:  # accelerator.print is once a node
        print(f"final loss {final.item():.6f}", flush=True)
    accelerator.end_training()


if __name__ == "__main__":
    main()
