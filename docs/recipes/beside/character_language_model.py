"""A character language model in Lightning."""

import math
import string
from pydoc_data.topics import topics

import lightning
import numpy as np
import pandas
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

text = "\n".join(topics[name] for name in sorted(topics))
letters = "\n" + string.printable[:95]
numbers = torch.tensor([letters.find(c) for c in text if c in letters][:150_000])
length = 64
texts = numbers.unfold(0, length + 1, length)


class LanguageModel(lightning.LightningModule):
    def __init__(self, width=64):
        super().__init__()
        self.embedding = nn.Embedding(96, width)
        block = nn.TransformerEncoderLayer(width, 4, 4 * width, 0.1, "gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(block, 2, nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, 96)
        wave = torch.arange(length)[:, None] * torch.exp(torch.arange(0, width, 2) * (-math.log(10000) / width))
        self.register_buffer("positions", torch.cat([wave.sin(), wave.cos()], 1))
        self.losses = []

    def forward(self, read):
        time = read.shape[1]
        h = self.embedding(read) * self.embedding.embedding_dim**0.5 + self.positions[:time]
        mask = nn.Transformer.generate_square_subsequent_mask(time)
        return self.head(self.encoder(h, mask, is_causal=True))

    def loss(self, batch):
        return nn.functional.cross_entropy(self(batch[0][:, :-1]).flatten(0, 1), batch[0][:, 1:].flatten())

    def training_step(self, batch, number):
        loss = self.loss(batch)
        self.log("loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, number):
        self.log("val_loss", self.loss(batch), prog_bar=True)

    def on_validation_epoch_end(self):
        self.losses.append(float(self.trainer.callback_metrics["val_loss"]))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), 0.003)


model = LanguageModel()
trainer = lightning.Trainer(max_epochs=6, logger=False, default_root_dir="letters", accelerator="cpu")
validation = DataLoader(TensorDataset(texts[-225:]), 16)
trainer.fit(model, DataLoader(TensorDataset(texts[:-225]), 16, shuffle=True), validation)
pandas.Series(model.losses).plot().figure.savefig("training.png")

random = np.random.default_rng(0)
said = [letters.find(c) for c in "The function"]
model.eval()
for _ in range(200):
    with torch.inference_mode():
        chances = model(torch.tensor([said[-length:]]))[0, -1].softmax(0).double().numpy()
    said.append(random.choice(96, p=chances / chances.sum()))
print("".join(letters[n] for n in said))
print("bits for a letter:", trainer.validate(model, validation)[0]["val_loss"] / np.log(2))
trainer.save_checkpoint("letters/model.ckpt")
