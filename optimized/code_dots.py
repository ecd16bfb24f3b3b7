"""Dot products of codes by the instruction that x86 has for them: left to itself the compiler takes one that adds half
as many products and is slower besides, which costs a factor of three.

Codes have at most seven bits and a sign, so two products of them stay far inside the instruction's 32 bits.
"""

from importlib import import_module
from typing import Any

from llvmlite import binding, ir
from numba.extending import intrinsic

__all__ = ["AVAILABLE", "four_dots"]

types: Any = import_module("numba.types")  # neither says what its types are
cgutils: Any = import_module("numba.core.cgutils")

AVAILABLE = bool(binding.get_host_cpu_features().get("avx2"))

MULTIPLY_ADD = "llvm.x86.avx2.pmadd.wd"  # products of 16 pairs of int16s, neighbours added: 8 int32s
STEP, PIECE = 32, 16  # codes a turn of the loop takes, and the instruction
BYTE, SHORT, INT, INDEX = (ir.IntType(bits) for bits in (8, 16, 32, 64))
SHORTS, SUMS = ir.VectorType(SHORT, PIECE), ir.VectorType(INT, PIECE // 2)


def _four_dots(context: Any, x: Any, weight: Any, row: Any, apart: Any) -> Any:
    """The sums of rows `row`, row + apart, row + 2 · apart, row + 3 · apart of `weight` (out, in), int8, with x (in),
    int16, both without gaps."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vector, matrix = (
            context.make_array(t)(context, builder, a) for t, a in zip(signature.args[:2], arguments[:2], strict=True)
        )
        (length,) = cgutils.unpack_tuple(builder, vector.shape)
        _, _, first, stride = arguments
        starts = [
            builder.gep(matrix.data, [builder.mul(builder.add(first, builder.mul(stride, INDEX(i))), length)])
            for i in range(4)
        ]
        sums = [cgutils.alloca_once_value(builder, ir.Constant(SUMS, [0] * (PIECE // 2))) for _ in starts]
        rests = [cgutils.alloca_once_value(builder, INT(0)) for _ in starts]

        def loaded(start: Any, at: Any, kind: Any) -> Any:
            whole = ir.VectorType(kind, PIECE)
            value = builder.load(builder.bitcast(builder.gep(start, [at]), whole.as_pointer()))
            value.align = 1
            return value if kind == SHORT else builder.sext(value, SHORTS)

        def add(total: Any, value: Any) -> None:
            builder.store(builder.add(builder.load(total), value), total)

        multiply_add = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(SUMS, [SHORTS, SHORTS]), MULTIPLY_ADD
        )
        turns = builder.udiv(length, INDEX(STEP))
        with cgutils.for_range(builder, turns) as turn:
            for piece in range(0, STEP, PIECE):
                at = builder.add(builder.mul(turn.index, INDEX(STEP)), INDEX(piece))
                some = loaded(vector.data, at, SHORT)
                for start, total in zip(starts, sums, strict=True):
                    add(total, builder.call(multiply_add, [some, loaded(start, at, BYTE)]))
        with cgutils.for_range_slice(builder, builder.mul(turns, INDEX(STEP)), length, INDEX(1)) as (at, _):
            one = builder.sext(builder.load(builder.gep(vector.data, [at])), INT)
            for start, rest in zip(starts, rests, strict=True):
                add(rest, builder.mul(one, builder.sext(builder.load(builder.gep(start, [at])), INT)))
        for total, rest in zip(sums, rests, strict=True):
            for i in range(PIECE // 2):
                add(rest, builder.extract_element(builder.load(total), INT(i)))
        return context.make_tuple(builder, signature.return_type, [builder.load(rest) for rest in rests])

    return types.UniTuple(types.int32, 4)(x, weight, row, apart), build


four_dots: Any = intrinsic(_four_dots)
