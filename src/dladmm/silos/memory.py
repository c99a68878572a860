"""What a server of silos must find again when it was killed: who takes part, and the answers it gave last."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from dladmm.base.atomic import replacing
from dladmm.base.errors import InputError
from dladmm.silos.wire import Message, MessageError


@dataclass
class Standing:
    """The silos that take part, why others were left out, and what silos call themselves."""

    silos: list[int]
    lost: dict[int, str]
    names: dict[int, str]


class Memory:
    """The last answers, and a file that is written before they go out; None keeps them in this process alone."""

    def __init__(self, path: str | Path | None) -> None:
        self.path = None if path is None else Path(path)
        self._answers: dict[int, bytes] = {}

    def keep(self, standing: Standing, answers: Mapping[int, bytes]) -> None:
        self._answers = dict(answers)
        if self.path is None:
            return
        says = asdict(standing) | {"answers": [[k, len(raw)] for k, raw in answers.items()]}
        with replacing(self.path) as file:
            file.writelines([json.dumps(says).encode() + b"\n", *answers.values()])

    def read(self) -> Standing | None:
        """How things stood; None where nothing was kept."""
        if self.path is None or not self.path.exists():
            return None
        header, _, body = self.path.read_bytes().partition(b"\n")
        try:
            says, at = json.loads(header), 0
            for k, length in says["answers"]:
                self._answers[int(k)] = body[at : at + length]
                at += length
            lost, names = ({int(k): str(v) for k, v in says[each].items()} for each in ("lost", "names"))
            return Standing([int(k) for k in says["silos"]], lost, names)
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"{self.path} is not the memory of a server of silos.") from error

    def answers_to(self, said: Mapping[int, bytes]) -> dict[int, bytes]:
        """The answers to those of these messages that were answered already."""
        return {k: self._answers[k] for k, raw in said.items() if k in self._answers and self._known(k, raw)}

    def _known(self, k: int, raw: bytes) -> bool:
        try:
            asked, known = Message.from_bytes(raw), Message.from_bytes(self._answers[k])
        except MessageError:
            return False
        if known.kind == "again":  # it answers whatever was asked, and later messages have higher numbers
            return asked.kind != "hello" and asked.number <= known.number
        return asked.kind == known.kind and asked.number == known.number

    def forget(self) -> None:
        if self.path is not None:
            self.path.unlink(missing_ok=True)
