"""One PTX instruction a function: the vocabulary of the device code.

A word is a `Uint32`: one 32-bit register, which holds an fp32 by its bits, two bf16, four bytes or an integer.
Rounding is spelled out (`mul.rn.f32`, never `mul.f32`), because ptxas contracts only what leaves the rounding open.
Memory instructions are volatile and clobber memory, so that none of them moves above `griddepcontrol.wait`.
Source of every mnemonic: PTX ISA 9.0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cutlass import Int32, Int64, Uint32, cute
from cutlass._mlir import ir
from cutlass._mlir.dialects import arith, llvm

FULL_WARP = 0xFFFFFFFF


def _emit(text: str, results: str, operands: Sequence[tuple[str, Any]], memory: bool = False) -> list[Any]:
    """Emit `text`; `results` is one constraint letter a result (r, l or h), operands are (letter, value) pairs."""
    constraints = [f"={letter}" for letter in results] + [letter for letter, _ in operands]
    if memory:
        constraints = [c.replace("=", "=&") for c in constraints] + ["~{memory}"]
    types = [ir.IntegerType.get_signless({"r": 32, "l": 64}[letter]) for letter in results]
    if not types:
        returned = None
    elif len(types) == 1:
        returned = types[0]
    else:
        returned = ir.Type.parse(f"!llvm.struct<({', '.join(str(t) for t in types)})>")
    value = llvm.inline_asm(
        res=returned,
        operands_=[operand.ir_value() for _, operand in operands],
        asm_string=text,
        constraints=",".join(constraints),
        has_side_effects=memory,
        asm_dialect=llvm.AsmDialect.AD_ATT,
    )
    if len(types) < 2:
        return [value] if types else []
    return [llvm.extractvalue(kind, value, [i]) for i, kind in enumerate(types)]


def _word(text: str, *operands: Any) -> Uint32:
    """One instruction from words to a word: `text` has $0 for the result and $1, $2 ... for the operands."""
    return Uint32(_emit(text, "r", [("r", Uint32(operand)) for operand in operands])[0])


def _pair(text: str, *operands: Int64) -> Int64:
    """One instruction on 64-bit registers."""
    return Int64(_emit(text, "l", [("l", operand) for operand in operands])[0])


def select(condition: Any, if_true: Any, if_false: Any) -> Uint32:
    """`if_true` where the Boolean `condition` holds, else `if_false`, without a branch."""
    return Uint32(arith.select(condition.ir_value(), Uint32(if_true).ir_value(), Uint32(if_false).ir_value()))


# ---- binary32, one rounding an operation -------------------------------------------------------------------------


def mul(a: Any, b: Any) -> Uint32:
    """The product a * b, rounded to nearest even."""
    return _word("mul.rn.f32 $0, $1, $2;", a, b)


def add(a: Any, b: Any) -> Uint32:
    """The sum a + b, rounded to nearest even."""
    return _word("add.rn.f32 $0, $1, $2;", a, b)


def sub(a: Any, b: Any) -> Uint32:
    """The difference a - b, rounded to nearest even."""
    return _word("sub.rn.f32 $0, $1, $2;", a, b)


def add_signed(a: Any, sign: Any, b: Any) -> Uint32:
    """The sum a * sign + b for a sign of +-1.0: the product is exact, so this is an addition with its one rounding."""
    return _word("fma.rn.f32 $0, $1, $2, $3;", a, sign, b)


# ---- binary32, two a 64-bit register: from sm_100 on -------------------------------------------------------------


def join(low: Any, high: Any) -> Int64:
    """Two words as one 64-bit register."""
    return Int64(_emit("mov.b64 $0, {$1, $2};", "l", [("r", Uint32(low)), ("r", Uint32(high))])[0])


def split(pair: Int64) -> tuple[Uint32, Uint32]:
    """The two words of a 64-bit register."""
    low, high = _emit("mov.b64 {$0, $1}, $2;", "rr", [("l", pair)])
    return Uint32(low), Uint32(high)


def add_x2(a: Int64, b: Int64) -> Int64:
    """Both sums a + b, rounded to nearest even."""
    return _pair("add.rn.f32x2 $0, $1, $2;", a, b)


def sub_x2(a: Int64, b: Int64) -> Int64:
    """Both differences a - b, rounded to nearest even."""
    return _pair("sub.rn.f32x2 $0, $1, $2;", a, b)


def mul_x2(a: Int64, b: Int64) -> Int64:
    """Both products a * b, rounded to nearest even."""
    return _pair("mul.rn.f32x2 $0, $1, $2;", a, b)


def add_signed_x2(a: Int64, sign: Int64, b: Int64) -> Int64:
    """Both sums a * sign + b for signs of +-1.0: as `add_signed`."""
    return _pair("fma.rn.f32x2 $0, $1, $2, $3;", a, sign, b)


# ---- bfloat16, two a word ----------------------------------------------------------------------------------------


def low_f32(pair: Any) -> Uint32:
    """The lower bf16 of a word, widened to fp32."""
    return Uint32(pair) << 16


def high_f32(pair: Any) -> Uint32:
    """The upper bf16 of a word, widened to fp32."""
    return Uint32(pair) & 0xFFFF0000


def widen_f16(value: Any) -> Uint32:
    """The fp16 in the lower half of a word, widened to fp32."""
    return _word("{ .reg .b16 half, unused; mov.b32 {half, unused}, $1; cvt.f32.f16 $0, half; }", value)


def round_bf16x2(low: Any, high: Any) -> Uint32:
    """Two fp32 rounded to bf16, nearest even."""
    return _word("cvt.rn.bf16x2.f32 $0, $1, $2;", high, low)


def round_bf16(value: Any) -> Uint32:
    """One fp32 rounded to bf16, nearest even, as fp32: the other half of the packed result is zero."""
    return _word("cvt.rn.bf16x2.f32 $0, $1, $2;", value, 0)


def fma_bf16x2(a: Any, b: Any, c: Any) -> Uint32:
    """Fused a * b + c on both bf16 halves with one rounding each; subnormals are kept."""
    return _word("fma.rn.bf16x2 $0, $1, $2, $3;", a, b, c)


def min_bf16x2(a: Any, b: Any) -> Uint32:
    """The smaller of each bf16 half (of numbers: a NaN loses)."""
    return _word("min.bf16x2 $0, $1, $2;", a, b)


def max_bf16x2(a: Any, b: Any) -> Uint32:
    """The larger of each bf16 half (of numbers: a NaN loses)."""
    return _word("max.bf16x2 $0, $1, $2;", a, b)


def max_magnitude_x2(a: Any, b: Any, capability: int) -> Uint32:
    """The larger of each half of two words of bf16 magnitudes, where NaN is above Inf is above every number."""
    if capability >= 90:
        return _word("max.u16x2 $0, $1, $2;", a, b)  # sign bits are clear, so integers order as magnitudes do
    return _word("max.NaN.bf16x2 $0, $1, $2;", a, b)  # a NaN stays one: 0x7FFF


def min_magnitude_x2(a: Any, b: Any, capability: int) -> Uint32:
    """The smaller of each half of two words of bf16 magnitudes, none of them NaN."""
    return _word("min.u16x2 $0, $1, $2;", a, b) if capability >= 90 else min_bf16x2(a, b)


# ---- integers and bytes ------------------------------------------------------------------------------------------


def min_u32(a: Any, b: Any) -> Uint32:
    """The smaller of two unsigned integers."""
    return _word("min.u32 $0, $1, $2;", a, b)


def multiply_add_u32(a: Any, factor: int, b: Any) -> Uint32:
    """Integer a * factor + b, the lower 32 bits: a shift and an addition that leave the integer pipe to others."""
    return _word(f"mad.lo.u32 $0, $1, {factor}, $2;", a, b)


def permute(a: Any, b: Any, selector: int) -> Uint32:
    """Four bytes of the eight of (a, b): nibble i of `selector` names byte i's source, 0 to 3 in a, 4 to 7 in b."""
    return _word(f"prmt.b32 $0, $1, $2, {selector:#x};", a, b)


# ---- eight-bit and four-bit floats -------------------------------------------------------------------------------


def round_e4m3x4(values: Sequence[Any]) -> Uint32:
    """Four fp32 as e4m3fn bytes, nearest even, saturating; the first in the lowest byte. From sm_89 on."""
    return _word(
        "{ .reg .b16 low, high; cvt.rn.satfinite.e4m3x2.f32 low, $2, $1; "
        "cvt.rn.satfinite.e4m3x2.f32 high, $4, $3; mov.b32 $0, {low, high}; }",
        *values,
    )


def round_e2m1(values: Sequence[Any]) -> Uint32:
    """Four or eight fp32 as E2M1 nibbles, nearest even, saturating; the first in the lowest.

    Of four, both halves of the word are alike. Arch- or family-specific Blackwell targets only.
    """
    count = len(values) // 2
    converts = "".join(f"cvt.rn.satfinite.e2m1x2.f32 b{i}, ${2 * i + 2}, ${2 * i + 1}; " for i in range(count))
    joined = ", ".join(f"b{i % count}" for i in range(4))
    return _word(f"{{ .reg .b8 b0, b1, b2, b3; {converts}mov.b32 $0, {{{joined}}}; }}", *values)


# ---- lanes -------------------------------------------------------------------------------------------------------


def shuffle_xor(value: Uint32, lanes: int) -> Uint32:
    """The value that lane `own ^ lanes` holds. The whole warp takes part."""
    return cute.arch.shuffle_sync_bfly(value, lanes, FULL_WARP, 31)


def shuffle_from(value: Uint32, lane: Int32) -> Uint32:
    """The value that `lane` of the warp holds. The whole warp takes part."""
    return cute.arch.shuffle_sync(value, lane, FULL_WARP, 31)


def max_u32_of_warp(value: Uint32) -> Uint32:
    """The largest unsigned integer that a lane of the warp holds. The whole warp takes part."""
    return Uint32(_emit(f"redux.sync.max.u32 $0, $1, {FULL_WARP:#x};", "r", [("r", value)], memory=True)[0])


# ---- order -------------------------------------------------------------------------------------------------------


def launch_dependents() -> None:
    """Let the next kernel of the stream start; it waits for this one's end before it touches memory."""
    _emit("griddepcontrol.launch_dependents;", "", [], memory=True)


def wait_for_producer(addresses: Sequence[Int64]) -> None:
    """Wait until the kernels before this one have ended and their writes are seen.

    The wait hangs on `addresses`, none of which is null, so that they are computed before it and not after.
    """
    tests = "".join(f"setp.ne.and.u64 p, ${i}, 0, p; " for i in range(len(addresses)))
    text = f"{{ .reg .pred p; setp.eq.u32 p, 0, 0; {tests}@p griddepcontrol.wait; }}"
    _emit(text, "", [("l", address) for address in addresses], memory=True)


def keep_loads_above() -> None:
    """Issue every load before this point before any instruction after it; without it ptxas moves them past a use."""
    _emit(f"bar.warp.sync {FULL_WARP:#x};", "", [], memory=True)


# ---- global memory -----------------------------------------------------------------------------------------------


def load(address: Int64, offset: int, words: int, modifier: str = "") -> list[Uint32]:
    """`words` (1, 2, 4 or 8) consecutive words at `address + offset` bytes, in one instruction, aligned to its size."""
    registers = ", ".join(f"${i}" for i in range(words))
    target, width = (f"{{{registers}}}", f".v{words}") if words > 1 else (registers, "")
    text = f"ld.global{modifier}{width}.b32 {target}, [${words}+{offset}];"
    return [Uint32(value) for value in _emit(text, "r" * words, [("l", address)], memory=True)]


def load_if(condition: Any, fallback: int, address: Int64, offset: int, words: int, modifier: str) -> list[Uint32]:
    """As `load` where the Boolean `condition` holds; elsewhere every word is `fallback` and memory is not touched."""
    registers = [f"${i}" for i in range(words)]
    joined = ", ".join(registers)
    target, width = (f"{{{joined}}}", f".v{words}") if words > 1 else (joined, "")
    preset = "".join(f"mov.b32 {register}, {fallback:#x}; " for register in registers)
    text = (
        f"{{ .reg .pred p; setp.ne.u32 p, ${words + 1}, 0; {preset}"
        f"@p ld.global{modifier}{width}.b32 {target}, [${words}+{offset}]; }}"
    )
    operands = [("l", address), ("r", Uint32(condition))]
    return [Uint32(value) for value in _emit(text, "r" * words, operands, memory=True)]


def load_u16(address: Int64, offset: int = 0) -> Uint32:
    """Two bytes at `address + offset`, in the lower half of a word."""
    return Uint32(_emit(f"ld.global.u16 $0, [$1+{offset}];", "r", [("l", address)], memory=True)[0])


def load_s64(address: Int64) -> Int64:
    """Eight bytes at `address`."""
    return Int64(_emit("ld.global.b64 $0, [$1];", "l", [("l", address)], memory=True)[0])


def prefetch_if(condition: Any, address: Int64) -> None:
    """Ask for the 128-byte line at `address` to be brought into L2, where the Boolean `condition` holds."""
    _store(condition, address, "prefetch.global.L2 [$0];", [])


def store_if(condition: Any, address: Int64, offset: int, words: Sequence[Uint32], modifier: str = "") -> None:
    """Store 1, 2 or 4 words at `address + offset` in one instruction where the Boolean `condition` holds."""
    count = len(words)
    registers = ", ".join(f"${i + 2}" for i in range(count))
    source, width = (f"{{{registers}}}", f".v{count}") if count > 1 else (registers, "")
    _store(condition, address, f"st.global{modifier}{width}.b32 [$0+{offset}], {source};", words)


def store_low_if(condition: Any, address: Int64, offset: int, word: Uint32, size: int, modifier: str = "") -> None:
    """Store the lowest `size` (1 or 2) bytes of `word` where the Boolean `condition` holds."""
    _store(condition, address, f"st.global{modifier}.u{8 * size} [$0+{offset}], $2;", [word])


def _store(condition: Any, address: Int64, instruction: str, words: Sequence[Uint32]) -> None:
    operands = [("l", address), ("r", Uint32(condition)), *(("r", word) for word in words)]
    _emit(f"{{ .reg .pred p; setp.ne.u32 p, $1, 0; @p {instruction} }}", "", operands, memory=True)
