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
    checkpoint: Annotated[
        list[str] | None,
        typer.Option(help="A checkpoint of the run, whose iteration is computed again too; may be repeated."),
    ] = None,
) -> None:
    """Check a certificate against the data: 0 accepted, 1 rejected, 2 it cannot be read.

    Example: dladmm verify run.certificate --data run.certificate.npz
    """
    from dladmm import verify as checking

    words = [word for each in data for word in ("--data", each)]
    words += [word for each in checkpoint or () for word in ("--checkpoint", each)]
    raise typer.Exit(checking.main([certificate, *words]))
