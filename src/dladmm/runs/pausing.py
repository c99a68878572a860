"""Checkpoints of a cell that takes long: by time, because a state of 55,000 images is a gigabyte and an epoch may be
20 ms on a GPU or 20 s on a CPU."""

from __future__ import annotations

import json
import shutil
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dladmm.base.atomic import replacing
from dladmm.base.errors import DataError
from dladmm.callbacks import Callback
from dladmm.training.checkpoint import CheckpointWarning, resume_latest, save_in_folder

if TYPE_CHECKING:
    from dladmm.training.trainer import Trainer

SECONDS = 120.0
"""A cell that breaks off loses two minutes at most; one that is shorter starts again."""


class Pausing(Callback):
    """Goes on from the checkpoint in ``folder`` if it is one of the same settings, and writes one every two minutes."""

    def __init__(self, folder: Path, settings: dict[str, Any], seconds: float = SECONDS) -> None:
        self.folder, self.settings, self.seconds = folder, settings, seconds

    def on_train_begin(self, trainer: Trainer) -> None:
        if self._known():
            resume_latest(trainer, self.folder)
        else:
            self.clear()
        self._saved = time.perf_counter()

    def on_epoch_end(self, trainer: Trainer) -> None:
        if time.perf_counter() - self._saved >= self.seconds:
            self._save(trainer)

    def clear(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def _known(self) -> bool:
        """Whether what lies there is of this cell as it is now."""
        try:
            found = json.loads((self.folder / "settings.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return False
        return bool(found == self.settings)

    def _save(self, trainer: Trainer) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with replacing(self.folder / "settings.json") as file:
                file.write(json.dumps(self.settings).encode())
            save_in_folder(trainer, self.folder, keep=1)
        except (OSError, DataError) as error:
            warnings.warn(f"no checkpoint of this cell: {error}", CheckpointWarning, stacklevel=2)
        self._saved = time.perf_counter()
