"""The ways engines compute the indexer query: the contract's and its known variants, as data.

A `Convention` is one choice on every axis of `AXES`; the first choice of an axis is the contract's. The arithmetic of
each choice is in `_variants.py`, the search for the convention that a dump follows in `verify.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

FORMATS = ("fp8", "mxfp4")
CONTRACT_FLOOR = "contract"

# field -> (choice -> prose). Order is preference: of choices that give the same bytes, the earlier one is named.
AXES: Mapping[str, Mapping[str, str]] = {
    "rope_style": {
        "interleaved": "rotary pairs (2i, 2i+1): interleaved",
        "neox": "rotary pairs (i, i+R/2): neox",
    },
    "rope_at": {"tail": "rotary part in the last R dims: tail", "head": "rotary part in the first R dims: head"},
    "rotation": {
        "contract": "rotated by the cos/sin row of its position",
        "skipped": "NOT rotated (or q was dumped after its rotation)",
        "inverse": "rotated backwards: the sine's sign is flipped",
        "pairs": "cos/sin row read as (cos, sin) pairs, not as R/2 cosines and then R/2 sines",
        "sin first": "cos/sin row read as R/2 sines and then R/2 cosines",
        "previous": "rotated by position - 1",
        "next": "rotated by position + 1",
        "bf16 cache": "cosines and sines rounded to bf16 before the rotation",
    },
    "arithmetic": {
        "fp32": "every product and sum of the rotation rounded to fp32, no FMA",
        "fma cos cos": "rotation contracted to FMA: fma(a, cos, -b*sin) and fma(b, cos, a*sin)",
        "fma cos sin": "rotation contracted to FMA: fma(a, cos, -b*sin) and fma(a, sin, b*cos)",
        "fma sin cos": "rotation contracted to FMA: fma(-b, sin, a*cos) and fma(b, cos, a*sin)",
        "fma sin sin": "rotation contracted to FMA: fma(-b, sin, a*cos) and fma(a, sin, b*cos)",
        "bf16": "every product and sum of the rotation rounded to bf16",
    },
    "rotated": {
        "bf16": "rotated values rounded to bf16",
        "fp32": "rotated values kept in fp32, not rounded to bf16",
    },
    "hadamard": {
        "none": "no Hadamard transform",
        "ascending": "Hadamard transform, butterfly strides 1, 2, 4 ... D/2",
        "descending": "Hadamard transform, butterfly strides D/2 ... 4, 2, 1",
    },
    "transformed": {
        "bf16": "transformed values rounded to bf16",
        "fp32": "transformed values kept in fp32, not rounded to bf16",
    },
    "scale": {
        "power of two": "scale rounded up to a power of two",
        "ocp floor": "scale 2**(floor(log2(amax)) - emax), the OCP MX recipe: large values saturate",
        "exact a/m v/s": "scale exact, not a power of two: s = amax / 448, code of v / s",
        "exact a*r v/s": "scale exact, not a power of two: s = amax * fp32(1/448), code of v / s",
        "exact a/m v*i": "scale exact, not a power of two: s = amax / 448, code of v * (1 / s)",
        "exact a*r v*i": "scale exact, not a power of two: s = amax * fp32(1/448), code of v * (1 / s)",
        "exact a/m v*m/a": "scale exact, not a power of two: s = amax / 448, code of v * (448 / amax)",
    },
    "floor": {
        CONTRACT_FLOOR: "amax floor of the contract (FP8 1e-4, MXFP4 6 * 2**-126)",
        "1e-4": "amax floor 1e-4",
        "1e-10": "amax floor 1e-10",
        "1e-12": "amax floor 1e-12",
        "tiny": "amax floor 448 * 2**-126 (FP8), the smallest with a normal scale",
    },
    "ties": {
        "even": "E2M1 ties to the even code",
        "toward zero": "E2M1 ties toward zero",
        "away": "E2M1 ties away from zero",
    },
    "zero": {"signed": "sign of zero kept (code 0x8)", "unsigned": "sign of zero dropped (code 0x0)"},
    "nibbles": {"even low": "even dim in the low nibble", "even high": "even dim in the HIGH nibble: nibbles swapped"},
    "scale_bytes": {
        "little": "scale byte of block b in bits 8b to 8b + 7: a little-endian int32",
        "big": "the four scale bytes of a row reversed: a BIG-endian int32",
    },
    "weights": {
        "combined": "w * C with C = fp32(softmax * head), then * scale",
        "scale first": "(w * scale) * C, C = fp32(softmax * head)",
        "scaled constant": "w * (C * scale), C = fp32(softmax * head)",
        "combined fp32": "w * C with C = fp32(softmax) * fp32(head) rounded in fp32, then * scale",
        "sequence": "multiplied in sequence: ((w * scale) * softmax) * head",
        "sequence, scale last": "multiplied in sequence: ((w * softmax) * head) * scale",
        "head first": "multiplied in sequence: ((w * head) * scale) * softmax",
        "head first bf16": "multiplied in sequence: (bf16(w * head) * scale) * softmax",
        "sequence bf16": "multiplied in sequence in bf16: bf16(bf16(w * softmax) * head), then * scale",
        "apart": "w * C, the FP8 scale NOT folded in (kept apart)",
        "apart, sequence": "(w * softmax) * head, the FP8 scale NOT folded in (kept apart)",
        "scale twice": "w * C * scale * scale, the FP8 scale folded in TWICE",
        "scale only": "w * scale, softmax and head scales NOT applied",
        "untouched": "w as it came in, nothing applied",
    },
}

# field -> what a person calls the question that it answers
QUESTIONS: Mapping[str, str] = {
    "rope_style": "rotary style",
    "rope_at": "rotary place",
    "rotation": "source of the cosines and sines",
    "arithmetic": "FMA in the rotation",
    "rotated": "rounding after the rotation",
    "hadamard": "order of the Hadamard strides",
    "transformed": "rounding after the Hadamard",
    "scale": "way to the scale",
    "floor": "amax floor",
    "ties": "E2M1 ties",
    "zero": "sign of zero",
    "nibbles": "nibble order",
    "scale_bytes": "order of the scale bytes",
    "weights": "order of the weight products",
}

_ONLY_FP8_WEIGHTS = (
    "scale first",
    "scaled constant",
    "sequence, scale last",
    "apart",
    "apart, sequence",
    "scale twice",
    "scale only",
)
_ONLY_MXFP4 = ("ties", "zero", "nibbles", "scale_bytes")


@dataclass(frozen=True)
class Convention:
    """One choice on every axis of `AXES`. The defaults are contract 1 with its default options."""

    rope_style: str = "interleaved"
    rope_at: str = "tail"
    rotation: str = "contract"
    arithmetic: str = "fp32"
    rotated: str = "bf16"
    hadamard: str = "none"
    transformed: str = "bf16"
    scale: str = "power of two"
    floor: str = CONTRACT_FLOOR
    ties: str = "even"
    zero: str = "signed"
    nibbles: str = "even low"
    scale_bytes: str = "little"
    weights: str = "combined"

    def deviations(self) -> tuple[str, ...]:
        """The axes on which no choice of the contract's options gives this convention."""
        contract = Convention()
        return tuple(
            axis.name
            for axis in fields(self)
            if getattr(self, axis.name) != getattr(contract, axis.name)
            and axis.name not in ("rope_style", "rope_at")
            and not (axis.name == "hadamard" and self.hadamard == "ascending")
        )


def choices(axis: str, fmt: str) -> tuple[str, ...]:
    """The choices of `axis` that mean something for format `fmt` ("fp8" or "mxfp4"), the contract's first."""
    names = tuple(AXES[axis])
    if fmt == "fp8":
        return names[:1] if axis in _ONLY_MXFP4 else tuple(name for name in names if (axis, name) != ("floor", "1e-4"))
    if axis == "scale":
        return ("power of two", "ocp floor")
    if axis == "floor":
        return (CONTRACT_FLOOR, "1e-4", "1e-10", "1e-12")
    return tuple(name for name in names if axis != "weights" or name not in _ONLY_FP8_WEIGHTS)


@dataclass(frozen=True)
class Engine:
    """What an engine was seen to do, measured on the release that `name` gives: the choices on each axis that fit."""

    name: str
    formats: tuple[str, ...]
    fits: Mapping[str, tuple[str, ...]]

    def matches(self, possible: Mapping[str, tuple[str, ...]], fmt: str) -> bool:
        """Whether one of the `possible` choices fits on every axis that the engine and the format have."""
        return fmt in self.formats and all(
            set(fits) & set(possible[axis]) for axis, fits in self.fits.items() if len(choices(axis, fmt)) > 1
        )


_EXACT = tuple(name for name in AXES["scale"] if name.startswith("exact"))
_UP, _HADAMARD = ("power of two",), ("ascending", "descending")
_V4_LAYOUT: Mapping[str, tuple[str, ...]] = {
    "rope_style": ("interleaved",),
    "rope_at": ("tail",),
    "rotation": ("contract",),
    "nibbles": ("even low",),
}
_ONE_CONSTANT = ("combined", "scale first", "scaled constant")

ENGINES = (
    Engine(
        "vLLM 0.33 DeepSeek-V4, Triton kernel", FORMATS,
        {**_V4_LAYOUT, "hadamard": ("none",), "scale": _UP, "ties": ("even",), "zero": ("signed",),
         "weights": ("sequence",)},
    ),
    Engine(
        "SGLang 0.5.23 DeepSeek-V4", ("fp8",),
        {**_V4_LAYOUT, "hadamard": _HADAMARD, "scale": _EXACT, "weights": _ONE_CONSTANT},
    ),
    Engine(
        "SGLang 0.5.23 DeepSeek-V4", ("mxfp4",),
        {**_V4_LAYOUT, "hadamard": _HADAMARD, "ties": ("toward zero",), "zero": ("unsigned",),
         "weights": _ONE_CONSTANT},
    ),
    Engine(
        "SGLang 0.5.23 DeepSeek-V3.2", ("fp8",),
        {"rope_style": ("interleaved",), "rope_at": ("head",), "rotation": ("contract",), "hadamard": ("none",),
         "scale": _EXACT},
    ),
    Engine(
        "vLLM 0.33 GLM-5.2 / DeepSeek-V3.2", ("fp8",),
        {"rope_at": ("head",), "rotation": ("contract",), "hadamard": ("none",), "scale": _UP, "floor": ("1e-10",)},
    ),
    Engine(
        "TensorRT-LLM", ("fp8",), {**_V4_LAYOUT, "floor": ("1e-12",), "weights": ("apart", "apart, sequence")},
    ),
    Engine("TensorRT-LLM", ("mxfp4",), {**_V4_LAYOUT, "floor": ("1e-12",), "ties": ("toward zero",)}),
)  # fmt: skip
