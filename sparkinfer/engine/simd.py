"""Inner products and exponentials as vector code: written for no instruction set, made by LLVM for the one that is there.

numba turns a loop into vector code where LLVM recognises it, and of products of small matrices, of a maximum and of loops that read
one memory as two types it does not. Here rows and lanes are constants, so that all sums stay in registers: a load of a key or value
serves every row, as in any matrix product's micro-kernel (Goto and van de Geijn, 2008).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from llvmlite import ir
from llvmlite.binding import get_host_cpu_features
from numba.core import types
from numba.core.cgutils import alloca_once_value, for_range
from numba.core.extending import intrinsic

LANES = 16
"""Floats of a vector: one register of AVX-512, two of AVX2, four of NEON or SSE."""
REGISTER = 16 if get_host_cpu_features().get("avx512f", False) else 8
"""Floats of a vector where each has to be one register, for they all are in use."""
_FLOAT = ir.FloatType()
_LINE = 16
_CONTRACT = ("contract",)  # a product and a sum may become one instruction
_LOWEST = -87.0  # exp of less is no normal float
#: exp(f) - 1 - f over f * f, highest power first (Cephes, Moshier).
_POLYNOMIAL = (1.9875691e-4, 1.3981999e-3, 8.3334519e-3, 4.1665795e-2, 1.6666665e-1, 5.0000001e-1)


def _scores(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    dim, scaling = arguments[4:6]
    rows, lanes = (signature.args[i].literal_value for i in (6, 7))
    out, query, keys = _operands(context, builder, signature, arguments)
    zero = _constant(0.0, lanes)
    sums = _outer_sums(builder, dim, lanes, query, keys, start=[zero] * rows)
    scale = _splat(builder, scaling, lanes)
    _store_rows(builder, out, [builder.fmul(builder.load(one), scale) for one in sums], lanes)
    return context.get_dummy_value()


def _add_values(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    count = arguments[4]
    rows, lanes = (signature.args[i].literal_value for i in (5, 6))
    acc, weights, values = _operands(context, builder, signature, arguments)
    start = [_load(builder, acc[0], _place(builder, acc, r), lanes) for r in range(rows)]
    sums = _outer_sums(builder, count, lanes, weights, values, start=start)
    _store_rows(builder, acc, [builder.load(one) for one in sums], lanes)
    return context.get_dummy_value()


def _dots(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    depth = arguments[4]
    rows, columns, lanes = (signature.args[i].literal_value for i in (5, 6, 7))
    out, left, right = _operands(context, builder, signature, arguments)
    zero = _constant(0.0, lanes)
    sums = [[alloca_once_value(builder, zero) for _ in range(columns)] for _ in range(rows)]
    lefts = [_place(builder, left, r) for r in range(rows)]
    rights = [_place(builder, right, c) for c in range(columns)]
    step = ir.Constant(depth.type, lanes)
    with for_range(builder, builder.udiv(depth, step)) as loop:
        at = builder.mul(loop.index, step)
        loaded = [_load(builder, right[0], builder.add(place, at), lanes) for place in rights]
        for place, row in zip(lefts, sums, strict=True):
            factor = _load(builder, left[0], builder.add(place, at), lanes)
            for one, other in zip(row, loaded, strict=True):
                product = builder.fmul(factor, other, flags=_CONTRACT)
                builder.store(builder.fadd(builder.load(one), product, flags=_CONTRACT), one)
    for r, row in enumerate(sums):
        for c, one in enumerate(row):
            place = builder.add(_place(builder, out, r), ir.Constant(depth.type, c))
            target = _pointer(builder, out[0], place, 0)
            total = _reduced(builder, builder.load(one), lanes, builder.fadd)
            more = builder.fadd(total, builder.load(target, align=4))
            total = builder.select(arguments[8], more, total)
            builder.store(total, target, align=4)
    return context.get_dummy_value()


def _largest(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    lanes = signature.args[3].literal_value
    array = _data(context, builder, signature.args[0], arguments[0])
    best = alloca_once_value(builder, _constant(float("-inf"), lanes))

    def larger(one: Any, other: Any) -> Any:
        return builder.select(builder.fcmp_ordered(">", one, other), one, other)

    for place in _steps(builder, arguments[1], arguments[2], lanes):
        builder.store(larger(_load(builder, array, place, lanes), builder.load(best)), best)
    return _reduced(builder, builder.load(best), lanes, larger)


def _exponentials(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    lanes = signature.args[4].literal_value
    array = _data(context, builder, signature.args[0], arguments[0])
    top = _splat(builder, arguments[3], lanes)
    total = alloca_once_value(builder, _constant(0.0, lanes))
    for place in _steps(builder, arguments[1], arguments[2], lanes):
        power = _exponential(builder, builder.fsub(_load(builder, array, place, lanes), top), lanes)
        builder.store(power, _pointer(builder, array, place, lanes), align=4)
        builder.store(builder.fadd(builder.load(total), power), total)
    return _reduced(builder, builder.load(total), lanes, builder.fadd)


def _exponential(builder: Any, x: Any, lanes: int) -> Any:
    """exp(x) = 2**n * exp(f), n whole and f at most half of log(2); what is no number stays none."""
    lowest = _constant(_LOWEST, lanes)
    x = builder.select(builder.fcmp_unordered(">", x, lowest), x, lowest)
    x = builder.fmul(x, _constant(1.44269504, lanes))
    n = _floor(builder, builder.fadd(x, _constant(0.5, lanes)), lanes)
    f = builder.fmul(builder.fsub(x, n), _constant(0.69314718, lanes))
    p = _constant(_POLYNOMIAL[0], lanes)
    for factor in _POLYNOMIAL[1:]:
        p = _fused(builder, p, f, _constant(factor, lanes))
    p = builder.fadd(_fused(builder, builder.fmul(p, f), f, f), _constant(1.0, lanes))
    whole = ir.VectorType(ir.IntType(32), lanes)
    shifted = builder.shl(builder.fptosi(n, whole), ir.Constant(whole, [23] * lanes))  # to the exponent's bits
    return builder.bitcast(builder.add(builder.bitcast(p, whole), shifted), p.type)


def _fused(builder: Any, one: Any, other: Any, plus: Any) -> Any:
    return builder.fadd(builder.fmul(one, other, flags=_CONTRACT), plus, flags=_CONTRACT)


def _floor(builder: Any, vector: Any, lanes: int) -> Any:
    name = f"llvm.floor.v{lanes}f32"
    function = builder.module.globals.get(name)
    if function is None:
        function = ir.Function(builder.module, ir.FunctionType(vector.type, [vector.type]), name=name)
    return builder.call(function, [vector])


def _steps(builder: Any, at: Any, count: Any, lanes: int) -> Iterator[Any]:
    """Within a loop: where each vector of ``array[at : at + count]`` begins."""
    step = ir.Constant(count.type, lanes)
    with for_range(builder, builder.udiv(count, step)) as loop:
        yield builder.add(at, builder.mul(loop.index, step))


def _constant(number: float, lanes: int) -> Any:
    return ir.Constant(ir.VectorType(_FLOAT, lanes), [number] * lanes)


def _reduced(builder: Any, vector: Any, lanes: int, combine: Callable[[Any, Any], Any]) -> Any:
    """A vector's elements combined, by halves."""
    number = ir.IntType(32)
    while lanes > 1:
        lanes //= 2
        nothing = ir.Constant(vector.type, ir.Undefined)
        low, high = (
            builder.shuffle_vector(
                vector, nothing, ir.Constant(ir.VectorType(number, lanes), list(range(first, first + lanes)))
            )
            for first in (0, lanes)
        )
        vector = combine(low, high)
    return builder.extract_element(vector, ir.Constant(number, 0))


def _outer_sums(builder: Any, count: Any, lanes: int, factors: Any, vectors: Any, *, start: list[Any]) -> list[Any]:
    """Vectors in registers, one a row: start[r] + sum over i < count of factors[r, i] * vectors[i]."""
    sums = [alloca_once_value(builder, value) for value in start]
    data, at, step = vectors
    with for_range(builder, count) as loop:
        loaded = _load(builder, data, builder.add(at, builder.mul(loop.index, step)), lanes)
        for r, one in enumerate(sums):
            place = builder.add(_place(builder, factors, r), loop.index)
            factor = _splat(builder, _load(builder, factors[0], place), lanes)
            product = builder.fmul(factor, loaded, flags=_CONTRACT)
            builder.store(builder.fadd(builder.load(one), product, flags=_CONTRACT), one)
    return sums


def _operands(context: Any, builder: Any, signature: Any, arguments: Any) -> list[tuple[Any, Any, Any]]:
    """The three arrays of a call: data, place of the first element, step from row to row."""
    numbers = [builder.extract_value(arguments[3], i) for i in range(6)]
    data = [_data(context, builder, signature.args[i], arguments[i]) for i in range(3)]
    return list(zip(data, numbers[::2], numbers[1::2], strict=True))


def _place(builder: Any, operand: tuple[Any, Any, Any], row: int) -> Any:
    """Where a row of an operand begins."""
    _, at, step = operand
    return builder.add(at, builder.mul(step, ir.Constant(step.type, row)))


def _store_rows(builder: Any, operand: tuple[Any, Any, Any], rows: list[Any], lanes: int) -> None:
    for r, value in enumerate(rows):
        builder.store(value, _pointer(builder, operand[0], _place(builder, operand, r), lanes), align=4)


def _data(context: Any, builder: Any, kind: Any, array: Any) -> Any:
    return context.make_array(kind)(context, builder, array).data


def _pointer(builder: Any, data: Any, place: Any, lanes: int) -> Any:
    kind = _FLOAT if lanes == 0 else ir.VectorType(_FLOAT, lanes)
    return builder.bitcast(builder.gep(data, [place]), kind.as_pointer())


def _load(builder: Any, data: Any, place: Any, lanes: int = 0) -> Any:
    """A float, or a vector of ``lanes``, wherever it lies."""
    return builder.load(_pointer(builder, data, place, lanes), align=4)


def _splat(builder: Any, value: Any, lanes: int) -> Any:
    kind = ir.VectorType(_FLOAT, lanes)
    first = builder.insert_element(ir.Constant(kind, ir.Undefined), value, ir.Constant(ir.IntType(32), 0))
    zeros = ir.Constant(ir.VectorType(ir.IntType(32), lanes), [0] * lanes)
    return builder.shuffle_vector(first, ir.Constant(kind, ir.Undefined), zeros)


def _prefetch(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    array, at, count = arguments
    number = ir.IntType(32)
    byte = ir.IntType(8).as_pointer()
    function = builder.module.declare_intrinsic(
        "llvm.prefetch", [byte], ir.FunctionType(ir.VoidType(), [byte, number, number, number])
    )
    data = _data(context, builder, signature.args[0], array)
    line = ir.Constant(count.type, _LINE)
    with for_range(builder, builder.udiv(count, line)) as loop:
        place = builder.bitcast(builder.gep(data, [builder.add(at, builder.mul(loop.index, line))]), byte)
        builder.call(function, [place, *(ir.Constant(number, value) for value in (0, 2, 1))])  # to read, near, data
    return context.get_dummy_value()


def _typed_scores(typingctx, out, query, keys, at, dim, scaling, rows, lanes):  # type: ignore[no-untyped-def]
    return types.void(out, query, keys, at, dim, scaling, rows, lanes), _scores


def _typed_add_values(typingctx, acc, weights, values, at, count, rows, lanes):  # type: ignore[no-untyped-def]
    return types.void(acc, weights, values, at, count, rows, lanes), _add_values


def _typed_dots(typingctx, out, left, right, at, depth, rows, columns, lanes, adds):  # type: ignore[no-untyped-def]
    return types.void(out, left, right, at, depth, rows, columns, lanes, adds), _dots


def _typed_largest(typingctx, array, at, count, lanes):  # type: ignore[no-untyped-def]
    return types.float32(array, at, count, lanes), _largest


def _typed_exponentials(typingctx, array, at, count, top, lanes):  # type: ignore[no-untyped-def]
    return types.float32(array, at, count, top, lanes), _exponentials


def _typed_prefetch(typingctx, array, at, count):  # type: ignore[no-untyped-def]
    return types.void(array, at, count), _prefetch


#: scores(out, query, keys, at, dim, scaling, rows, lanes):
#: out[o + r * os + n] = scaling * sum over d < dim of query[q + r * qs + d] * keys[k + d * ks + n].
#: Arrays are contiguous and float32, indexed as if flat; ``at`` is (o, os, q, qs, k, ks); ``rows`` and ``lanes`` are literals.
scores: Any = intrinsic(prefer_literal=True)(_typed_scores)

#: add_values(acc, weights, values, at, count, rows, lanes):
#: acc[a + r * as + n] += sum over t < count of weights[w + r * ws + t] * values[v + t * vs + n]; ``at`` is (a, as, w, ws, v, vs).
add_values: Any = intrinsic(prefer_literal=True)(_typed_add_values)

#: dots(out, left, right, at, depth, rows, columns, lanes, adds):
#: out[o + r * os + c] = sum over i < depth of left[l + r * ls + i] * right[w + c * ws + i], or += where ``adds`` is true; ``at`` is
#: (o, os, l, ls, w, ws), ``depth`` a multiple of ``lanes``, and ``rows``, ``columns`` and ``lanes`` are literals.
dots: Any = intrinsic(prefer_literal=True)(_typed_dots)

#: largest(array, at, count, lanes): the largest of array[at : at + count], of those that are numbers; ``count`` a multiple of ``lanes``.
largest: Any = intrinsic(prefer_literal=True)(_typed_largest)

#: exponentials(array, at, count, top, lanes): array[at : at + count] = exp(array - top), relative error 1e-7 near 0 and 4e-6 at -87; their
#: sum. Differences are below 88, ``count`` is a multiple of ``lanes``.
exponentials: Any = intrinsic(prefer_literal=True)(_typed_exponentials)

#: prefetch(array, at, count): ask for array[at : at + count], so that a later read finds it in the cache; an instruction a line.
prefetch: Any = intrinsic(_typed_prefetch)
