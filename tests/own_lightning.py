"""A LightningModule with its own optimizer, schedule and callback, and its data: two clouds of points."""

from __future__ import annotations

import errno
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from torch import nn


class Clouds(pl.LightningDataModule):
    def __init__(self, examples: int = 256) -> None:
        super().__init__()
        self.examples = examples

    def setup(self, stage: str) -> None:  # noqa: ARG002
        generator = torch.Generator().manual_seed(0)
        y = torch.arange(self.examples) % 2
        x = torch.randn(self.examples, 4, generator=generator) + 4 * y[:, None]
        self.sets = torch.utils.data.TensorDataset(x, y)

    def _loader(self) -> Any:
        return torch.utils.data.DataLoader(self.sets, batch_size=32)

    train_dataloader = val_dataloader = test_dataloader = _loader


class Noted(pl.Callback):
    def on_train_start(self, *_: Any) -> None:
        print("the callback was called")


class Lit(pl.LightningModule):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 2))

    def _loss(self, batch: Any, name: str) -> Any:
        x, y = batch
        logits = self.net(x)
        loss = nn.functional.cross_entropy(logits, y)
        self.log(f"{name}_loss", loss, on_step=name == "train", on_epoch=True)
        self.log(f"{name}_accuracy", (logits.argmax(1) == y).float().mean())
        self.log("shared", loss, on_step=False, on_epoch=True)  # of training and validation
        return loss

    def training_step(self, batch: Any, _: int) -> Any:
        return self._loss(batch, "train")

    def validation_step(self, batch: Any, _: int) -> None:
        self._loss(batch, "val")

    def test_step(self, batch: Any) -> None:
        self._loss(batch, "test")

    def configure_callbacks(self) -> Any:
        return [Noted()]

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.5, momentum=0.5)
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1)}


class Mortal(Lit):
    """Kills itself where a file says so (`die-2`: in its third epoch; `die-test`); counts its epochs at their ends."""

    ended: torch.Tensor

    def __init__(self, stops: bool = False) -> None:
        super().__init__()
        self.register_buffer("ended", torch.zeros(()))
        self.stops = stops

    def training_step(self, batch: Any, number: int) -> Any:
        die(str(self.current_epoch))
        return super().training_step(batch, number)

    def test_step(self, batch: Any) -> None:
        die("test")
        super().test_step(batch)

    def on_train_epoch_end(self) -> None:
        self.ended += 1
        self.log("ended", self.ended)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.5, momentum=0.5)
        steps = {"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.99), "interval": "step"}
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode="max", patience=0)
        return [optimizer], [steps, {"scheduler": plateau, "monitor": "val_loss"}]

    def configure_callbacks(self) -> Any:
        early = pl.callbacks.EarlyStopping("val_loss", patience=1, min_delta=100)
        return [early] if self.stops else []


def die(where: str) -> None:
    """If there is a file that says so, once what was begun has been written."""
    if list(Path.cwd().glob(f"die-{where}")):
        while not list(Path.cwd().glob("runs/*/checkpoints/step-*")):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)


class Misnamed(Lit):
    """A name with an empty part."""

    def validation_step(self, batch: Any, _: int) -> None:
        self.log("val_loss/", self._loss(batch, "val"))

    def configure_callbacks(self) -> Any:
        return []


class Quiet(Lit):
    """Diverges at once, and logs nothing."""

    def training_step(self, batch: Any, _: int) -> Any:
        return self.net(batch[0]).sum() * float("nan")

    def validation_step(self, batch: Any, _: int) -> None:
        """Measures nothing."""

    def test_step(self, batch: Any) -> None:
        """Measures nothing."""


class Broken(Lit):
    """Raises in its fourth step."""

    def training_step(self, batch: Any, number: int) -> Any:
        if number == 3:
            raise ValueError("a label\nis damaged")
        return super().training_step(batch, number)


class Narrow(Lit):
    """Gives its net too few columns, which torch finds out."""

    def training_step(self, batch: Any, _: int) -> Any:
        return self.net(batch[0][:, :3]).sum()


class Monitors(Lit):
    """Its callback watches a metric that nobody logs, which Lightning finds out."""

    def configure_callbacks(self) -> Any:
        return [pl.callbacks.EarlyStopping("val_los")]


class Still(Lit):
    """Has no loss."""

    def training_step(self, batch: Any, _: int) -> None:
        """Lightning counts the step."""


class Damaged(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, number: int) -> Any:
        if number == 40:
            raise KeyError("image 40")
        return torch.zeros(4), 0


class FromWorkers(Clouds):
    """Loaded by another process, which finds a damaged example."""

    def train_dataloader(self) -> Any:
        return torch.utils.data.DataLoader(Damaged(), batch_size=32, num_workers=1)


class Manual(Lit):
    """Steps its optimizer itself."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False


class Full(Lit):
    """Its state cannot be written: the disk is full."""

    def on_save_checkpoint(self, _: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
