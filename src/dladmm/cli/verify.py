"""``dladmm verify``: the same check as ``verify.py``, which can be copied and needs numpy alone."""

from __future__ import annotations

from typing import Annotated

import typer


def verify(
    certificate: Annotated[
        str, typer.Argument(help="A file of Certificate.save or dladmm train --certificate.")
    ],
    data: Annotated[
        list[str],
        typer.Option(
            help="data.npz, a CSV file whose last column is y, or X=X.npy, y=y.npy; may be repeated."
        ),
    ],
) -> None:
    """Check a certificate against the data: 0 accepted, 1 rejected, 2 it cannot be read.

    Example: dladmm verify run.certificate --data run.certificate.npz
    """
    from dladmm import verify as checking

    raise typer.Exit(checking.main([certificate, *(word for each in data for word in ("--data", each))]))
