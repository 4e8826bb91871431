"""A script around the Trainer of transformers: a tiny GPT-2 from its configuration, nothing downloaded."""

import tempfile

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed


class Counting(Dataset):
    """Sequences that count up, each from another number."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = (index + torch.arange(16)) % 50
        return {"input_ids": tokens, "labels": tokens}


def main() -> None:
    set_seed(0)
    config = GPT2Config(
        vocab_size=50, n_positions=16, n_embd=32, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0
    )
    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(
            output_dir=folder,
            max_steps=4,
            per_device_train_batch_size=2,
            gradient_accumulation_steps=2,
            learning_rate=1e-2,
            use_cpu=True,
            report_to=[],
            disable_tqdm=True,
            logging_strategy="no",
            save_strategy="no",
        )
        trainer = Trainer(GPT2LMHeadModel(config), args, train_dataset=Counting())
        found = trainer.train()
        if trainer.is_world_process_zero():
            print(f"final loss {found.training_loss:.6f}", flush=True)


if __name__ == "__main__":
    main()
