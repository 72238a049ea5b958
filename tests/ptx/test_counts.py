"""The emitted code is what the table says: a change of it must be seen in review."""

from __future__ import annotations

import copy

import pytest

from tests import cases
from tests.ptx import counts
from tests.ptx.backends import CUTE, TARGETS, TRITON, versions
from tests.ptx.parse import parse
from tests.ptx.programs import source

RENEW = "If the change is meant: python -m tests.ptx counts --write, and commit tests/ptx/counts.json."


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("backend", [CUTE, TRITON])
def test_the_table(backend: str, target: str) -> None:
    stored = counts.stored()
    if stored["compilers"] != versions():
        pytest.skip(f"counts.json is of {stored['compilers']}, installed is {versions()}")
    kept = {name: kernel for name, kernel in stored["kernels"].items() if name.startswith(f"{backend} {target} ")}
    changes = counts.changes(kept, counts.entries(backend, target))
    assert not changes, "\n".join([*changes, RENEW])


def test_the_table_holds_nothing_else() -> None:
    names = {f"{b} {t} {f} T={n}" for b in (CUTE, TRITON) for t in TARGETS for f in cases.FORMATS
             for n in (counts.SHORT, counts.LONG)}  # fmt: skip
    assert counts.stored()["kernels"].keys() == names


def test_blackwell_loads_256_bits_and_nothing_before_it_does() -> None:
    for name, kernel in counts.stored()["kernels"].items():
        backend, target, _, length = name.split()
        wide = "256 bits" in kernel["loads"]
        if target in ("sm_100", "sm_120"):
            assert wide or (backend, length) != ("cute", "T=4096"), name
        else:
            assert not wide, name


def test_counting() -> None:
    kernel = parse(
        source(
            """ld.global.L1::no_allocate.v8.b32 {%r1, %r2, %r3, %r4, %r5, %r6, %r7, %r8}, [%rd0];
            ld.global.b16 %h1, [%rd0]; st.global.v2.b64 [%rd1], {%rd2, %rd3}; add.u32 %r1, %r2, %r3; ret;"""
        )
    ).kernel()
    counted = counts.count(kernel)
    assert counted["loads"] == {"256 bits": 1, "16 bits": 1}
    assert counted["stores"] == {"128 bits": 1}
    assert counted["instructions"] == {"ld": 4, "add": 2, "mov": 1, "mul": 1, "ret": 1, "st": 1}
    assert counted["total"] == 10


def test_changes_are_named() -> None:
    old = {"a": {"loads": {"128 bits": 2}, "stores": {}, "instructions": {"mul": 3}}}
    old["b"] = old["a"]
    new = copy.deepcopy(old)
    assert counts.changes(old, new) == []
    new["a"] = {"loads": {"256 bits": 1}, "stores": {}, "instructions": {"mul": 3, "fma": 1}}
    new["c"] = new.pop("b")
    assert counts.changes(old, new) == [
        "a: loads 128 bits: 2 -> 0",
        "a: loads 256 bits: 0 -> 1",
        "a: instructions fma: 0 -> 1",
        "b: gone",
        "c: new",
    ]
