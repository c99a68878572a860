"""The links a chain is made of: one file per block."""

from dladmm.blocks.affine import Affine
from dladmm.blocks.base import Block, Support
from dladmm.blocks.batch_norm import BatchNorm
from dladmm.blocks.convolution import Convolution
from dladmm.blocks.dropout import Dropout
from dladmm.blocks.elementwise import Elementwise
from dladmm.blocks.embedding import Embedding
from dladmm.blocks.finite_affine import FiniteAffine
from dladmm.blocks.frozen import Frozen
from dladmm.blocks.generic import Generic
from dladmm.blocks.graphconv import GraphConv
from dladmm.blocks.grouped_affine import GroupedAffine
from dladmm.blocks.linear_map import Composed, LinearMap
from dladmm.blocks.max_pool import MaxPool
from dladmm.blocks.positionwise import Positionwise
from dladmm.blocks.recurrent import RecurrentStates
from dladmm.blocks.whole import Whole, WholeGraph
from dladmm.compute.work import Work
from dladmm.solvers.subproblems import Anchor, Params, Step, Term

__all__ = [
    "Affine",
    "Anchor",
    "BatchNorm",
    "Block",
    "Composed",
    "Convolution",
    "Dropout",
    "Elementwise",
    "Embedding",
    "FiniteAffine",
    "Frozen",
    "Generic",
    "GraphConv",
    "GroupedAffine",
    "LinearMap",
    "MaxPool",
    "Params",
    "Positionwise",
    "RecurrentStates",
    "Step",
    "Support",
    "Term",
    "Whole",
    "WholeGraph",
    "Work",
]
