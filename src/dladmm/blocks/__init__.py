"""The links a chain is made of: one file a block."""

from dladmm.blocks.affine import Affine
from dladmm.blocks.base import Anchor, Block, Params, Scope, Step, Term
from dladmm.blocks.elementwise import Elementwise
from dladmm.blocks.generic import Generic

__all__ = ["Affine", "Anchor", "Block", "Elementwise", "Generic", "Params", "Scope", "Step", "Term"]
