"""Tables as people have them: files of text and numbers with gaps, read and turned into numbers for a network."""

from dladmm.tables.encoder import TableEncoder
from dladmm.tables.frame import Frame, frame_of
from dladmm.tables.read import read_table

__all__ = ["Frame", "TableEncoder", "frame_of", "read_table"]
