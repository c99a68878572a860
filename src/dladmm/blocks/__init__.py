"""The links a chain is made of: one file a block."""

from dladmm.blocks.affine import Affine
from dladmm.blocks.base import Anchor, Block, Params, Scope, Step, Term
from dladmm.blocks.elementwise import Elementwise
from dladmm.blocks.generic import Generic
from dladmm.blocks.graphconv import GraphConv

__all__ = [
    "Affine",
    "Anchor",
    "Block",
    "Elementwise",
    "Generic",
    "GraphConv",
    "Params",
    "Scope",
    "Step",
    "Term",
]
