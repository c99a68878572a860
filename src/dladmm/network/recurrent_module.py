"""A recurrent layer that can be used in an ``nn.Sequential``."""

from __future__ import annotations

from torch import Tensor, nn

from dladmm.base.errors import InputError, InputTypeError


class Recurrent(nn.Module):
    """Torch's ``nn.RNN``, ``nn.GRU`` or ``nn.LSTM`` as a module that returns one tensor.

    Torch's layers return a pair, which an ``nn.Sequential`` cannot pass on.

    Parameters
    ----------
    rnn : nn.RNN, nn.GRU or nn.LSTM
        One layer, one direction, ``batch_first=True``, without dropout and projection.
    last : bool, default True
        Return the last hidden state, (N, hidden), for one output per sequence; if False all of them,
        (N, time, hidden).

    >>> network = nn.Sequential(Recurrent(nn.GRU(8, 32, batch_first=True)), nn.Linear(32, 10))
    """

    def __init__(self, rnn: nn.Module, last: bool = True) -> None:
        super().__init__()
        if not isinstance(rnn, (nn.RNN, nn.GRU, nn.LSTM)):
            raise InputTypeError(f"rnn must be an nn.RNN, nn.GRU or nn.LSTM, got {type(rnn).__name__}.")
        projected = getattr(rnn, "proj_size", 0)
        if not rnn.batch_first or rnn.bidirectional or rnn.num_layers != 1 or rnn.dropout or projected:
            raise InputError(
                f"rnn must be batch_first, of one layer, in one direction, without dropout, got {rnn!r}. "
                "Put several Recurrent layers after each other instead of num_layers."
            )
        self.rnn, self.last = rnn, last

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.rnn(x)[0]
        return output[:, -1] if self.last else output
