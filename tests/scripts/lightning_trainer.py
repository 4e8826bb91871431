"""A script around Lightning's Trainer, as for torchrun: the environment says how many nodes and devices there are."""

import os

import pytorch_lightning as lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Classifier(lightning.LightningModule):
    """Two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 5))

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        inputs, targets = batch
        loss = nn.functional.cross_entropy(self.layers(inputs), targets)
        self.log("loss", loss, on_step=False, on_epoch=True, sync_dist=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def main() -> None:
    lightning.seed_everything(0)
    data = TensorDataset(torch.randn(64, 20), torch.randint(5, (64,)))
    trainer = lightning.Trainer(
        accelerator="cpu",
        strategy="ddp",
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        num_nodes=int(os.environ["GROUP_WORLD_SIZE"]),
        max_epochs=2,
        gradient_clip_val=1.0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Classifier(), DataLoader(data, batch_size=4, shuffle=True))
    if trainer.is_global_zero:
        print(f"final loss {trainer.callback_metrics['loss'].item():.6f}", flush=True)


if __name__ == "__main__":
    main()
