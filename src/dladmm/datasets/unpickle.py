"""A restricted unpickler for the Planetoid files that can build only what those files contain.

The `ind.*` files are Python 2 pickles. `pickle.load` would execute whatever a modified file contains. This unpickler
does not use `pickle`: it implements the opcodes that occur in the 21 published files, and six names, each of which is
an inert marker. No opcode calls or imports anything, or allocates more than it has bytes in the file. Arrays come from
`numpy.frombuffer` after type, shape and length have been checked.

What may come out: an integer array, a float array, a `SparseRows`, or a dict of lists of whole numbers.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from dladmm.base.errors import DataError
from dladmm.datasets._standins import Array, Dtype, Name, Refused, SparseRows, array_of, finished, short_text

MAX_OPCODES = 1_000_000  #: PubMed's graph, the longest, takes 180,000; every array file fewer than 200

_MARK = object()


def load(data: bytes, source: str, *, max_opcodes: int = MAX_OPCODES) -> Any:
    """The object in a Planetoid file; raises DataError for anything those files do not contain."""
    machine = _Machine(data)
    try:
        return machine.run(max_opcodes)
    except Refused as error:
        raise DataError(f"{source}: refused at byte {machine.at:,}: {error}; fetch the file again") from error


class _Machine:
    """The stack machine of a pickle: input position, stack and memo."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def run(self, max_opcodes: int) -> Any:
        if self.data[:2] != b"\x80\x02":
            raise Refused("it does not start like a pickle of protocol 2")
        self.at = 2
        for _ in range(max_opcodes):
            opcode = self.take(1)
            if opcode == b".":
                return self.finish()
            step = _OPCODES.get(opcode)
            if step is None:
                raise Refused(f"opcode 0x{opcode.hex()} does not occur in these files")
            step(self)
        raise Refused(f"more than {max_opcodes:,} opcodes")

    def finish(self) -> Any:
        if self.at != len(self.data):
            raise Refused("bytes follow the end of the pickle")
        value = self.pop()
        if self.stack:
            raise Refused("objects are left over at the end")
        return finished(value)

    # Input and stack

    def take(self, count: int) -> bytes:
        piece = self.data[self.at : self.at + count]
        if len(piece) != count:
            raise Refused(f"the file ends early (truncated): {count:,} bytes wanted, {len(piece):,} left")
        self.at += count
        return piece

    def number(self, layout: str) -> int:
        (value,) = struct.unpack(layout, self.take(struct.calcsize(layout)))
        return int(value)

    def pop(self) -> Any:
        if not self.stack or self.stack[-1] is _MARK:
            raise Refused("an opcode finds too little on the stack")
        return self.stack.pop()

    def top(self, kind: type) -> Any:
        if not self.stack or self.stack[-1] is _MARK or not isinstance(self.stack[-1], kind):
            raise Refused(f"an opcode needs a {kind.__name__} and finds something else")
        return self.stack[-1]

    def pop_to_mark(self) -> list[Any]:
        for depth in range(len(self.stack) - 1, -1, -1):
            if self.stack[depth] is _MARK:
                items = self.stack[depth + 1 :]
                del self.stack[depth:]
                return items
        raise Refused("an opcode finds no mark on the stack")

    # Opcodes that do more than push a constant

    def push_string(self, length: int) -> None:
        if length < 0:
            raise Refused(f"a string of {length} bytes")
        self.stack.append(self.take(length))

    def push_name(self) -> None:
        lines = self.data[self.at : self.at + 80].split(b"\n")
        if len(lines) < 3:
            raise Refused("a name without an end")
        self.at += len(lines[0]) + len(lines[1]) + 2
        module, name = (line.decode("ascii", "backslashreplace") for line in lines[:2])
        try:
            self.stack.append(Name((module, name)))
        except ValueError:
            raise Refused(f"{module}.{name} is not one of the six names allowed") from None

    def push_tuple(self, size: int) -> None:
        self.stack.append(tuple([self.pop() for _ in range(size)][::-1]))

    def remember(self, slot: int) -> None:
        self.memo[slot] = self.top(object)

    def recall(self, slot: int) -> None:
        if slot not in self.memo:
            raise Refused(f"memo slot {slot} is empty")
        self.stack.append(self.memo[slot])

    def append(self) -> None:
        item = self.pop()
        self.top(list).append(item)

    def append_all(self) -> None:
        items = self.pop_to_mark()
        self.top(list).extend(items)

    def set_items(self) -> None:
        items = self.pop_to_mark()
        target = self.top(dict)
        # Only short keys: hashing a tuple of tuples of tuples from the memo would take for ever.
        if len(items) % 2 or not all(isinstance(key, (int, bytes)) for key in items[::2]):
            raise Refused("a dict with keys other than numbers and strings")
        target.update(zip(items[::2], items[1::2], strict=True))

    def reduce(self) -> None:
        arguments, callee = self.pop(), self.pop()
        if callee is Name.DTYPE and isinstance(arguments, tuple) and arguments[1:] == (0, 1):
            self.stack.append(Dtype(short_text(arguments[0])))
        elif callee is Name.RECONSTRUCT and arguments == (Name.NDARRAY, (0,), b"b"):
            self.stack.append(Array())
        elif callee is Name.DEFAULTDICT and arguments == (Name.LIST,):
            self.stack.append({})
        else:
            raise Refused("a call that these files never make")

    def new_object(self) -> None:
        arguments, callee = self.pop(), self.pop()
        if callee is not Name.CSR_MATRIX or arguments != ():
            raise Refused("an object that these files never make")
        self.stack.append(SparseRows())

    def build(self) -> None:
        state, target = self.pop(), self.top(object)
        if isinstance(target, SparseRows) and isinstance(state, dict):
            target.state = state
        elif isinstance(target, Dtype) and isinstance(state, tuple) and len(state) == 8:
            target.order = short_text(state[1])
        elif isinstance(target, Array) and isinstance(state, tuple) and len(state) == 5:
            target.value = array_of(*state[1:])
        else:
            raise Refused("a state that does not fit its object")


_OPCODES: dict[bytes, Callable[[_Machine], None]] = {
    b"(": lambda m: m.stack.append(_MARK),
    b"N": lambda m: m.stack.append(None),
    b"\x88": lambda m: m.stack.append(True),
    b"\x89": lambda m: m.stack.append(False),
    b"]": lambda m: m.stack.append([]),
    b"}": lambda m: m.stack.append({}),
    b")": lambda m: m.stack.append(()),
    b"K": lambda m: m.stack.append(m.number("<B")),
    b"M": lambda m: m.stack.append(m.number("<H")),
    b"J": lambda m: m.stack.append(m.number("<i")),
    b"U": lambda m: m.push_string(m.number("<B")),
    b"T": lambda m: m.push_string(m.number("<i")),
    b"c": _Machine.push_name,
    b"\x85": lambda m: m.push_tuple(1),
    b"\x86": lambda m: m.push_tuple(2),
    b"\x87": lambda m: m.push_tuple(3),
    b"t": lambda m: m.stack.append(tuple(m.pop_to_mark())),
    b"q": lambda m: m.remember(m.number("<B")),
    b"r": lambda m: m.remember(m.number("<I")),
    b"h": lambda m: m.recall(m.number("<B")),
    b"a": _Machine.append,
    b"e": _Machine.append_all,
    b"u": _Machine.set_items,
    b"R": _Machine.reduce,
    b"\x81": _Machine.new_object,
    b"b": _Machine.build,
}
