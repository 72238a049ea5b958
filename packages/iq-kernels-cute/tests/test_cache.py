"""The kernel cache: each variant compiled once, whatever happens to the disk, to threads and to forks."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from iq_kernels_cute import cache
from iq_kernels_cute.indexer_q import compiling, config
from iq_kernels_cute.indexer_q.config import Variant


@pytest.fixture
def variant(make_workload) -> Variant:
    return config.choose(make_workload(), 1, dense=True)


@pytest.fixture
def compiles(monkeypatch: pytest.MonkeyPatch) -> list[Variant]:
    """The variants compiled during the test, in order."""
    seen: list[Variant] = []
    real = compiling.compile_variant

    def counting(variant: Variant, options: str = ""):
        seen.append(variant)
        return real(variant, options)

    monkeypatch.setattr(compiling, "compile_variant", counting)
    return seen


def forget() -> None:
    """What a new process would know: nothing in memory."""
    cache._kernels.clear()


def test_memory_then_disk(cold: Path, variant: Variant, compiles: list[Variant]):
    before = cache.count()
    first = cache.get(variant)
    assert cache.get(variant) is first
    assert cache.count() == before + 1
    forget()
    assert cache.get(variant) is not first
    assert compiles == [variant]
    assert cache.count() == before + 2
    assert [path.name for path in cold.iterdir()] == [cache.entry_path(variant).name]


@pytest.mark.parametrize("damage", ["empty", "truncated", "flipped", "foreign"])
def test_damaged_entry_is_rebuilt(cold: Path, variant: Variant, compiles: list[Variant], damage: str):
    cache.get(variant)
    path = cache.entry_path(variant)
    good = path.read_bytes()
    bad = {
        "empty": b"",
        "truncated": good[: len(good) // 2],
        "flipped": good[:1000] + bytes([good[1000] ^ 1]) + good[1001:],
        "foreign": os.urandom(5000),
    }[damage]
    path.write_bytes(bad)
    forget()
    cache.get(variant)
    assert len(compiles) == 2
    assert cache._read_entry(path) is not None


def test_whole_entry_that_does_not_load_is_rebuilt(cold: Path, variant: Variant, compiles: list[Variant]):
    cache._write_entry(cache.entry_path(variant), b"whole, and no object file")
    cache.get(variant)
    assert compiles == [variant]
    forget()
    cache.get(variant)
    assert compiles == [variant]


def test_off_switch(cold: Path, variant: Variant, compiles: list[Variant], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("IQ_KERNELS_CACHE", "0")
    cache.get(variant)
    forget()
    cache.get(variant)
    assert len(compiles) == 2
    assert not cold.exists()
    with pytest.raises(RuntimeError, match="IQ_KERNELS_CACHE=0"):
        cache.fill(variant)


def test_unwritable_folder_warns_once(
    tmp_path: Path, cold: Path, variant: Variant, make_workload, monkeypatch: pytest.MonkeyPatch
):
    blocked = tmp_path / "file"
    blocked.write_text("a file where a folder should be")
    monkeypatch.setenv("IQ_KERNELS_CACHE_DIR", str(blocked / "kernels"))
    with pytest.warns(RuntimeWarning, match="IQ_KERNELS_CACHE_DIR"):
        cache.get(variant)
    cache.get(dataclasses.replace(variant, threads=64))  # a second warning would be an error
    with pytest.raises(RuntimeError, match="cannot be written"):
        cache.fill(variant)


def test_default_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.delenv("IQ_KERNELS_CACHE_DIR", raising=False)
    monkeypatch.delenv("IQ_KERNELS_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.folder() == tmp_path / "iq-kernels"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache.folder() == tmp_path / ".cache" / "iq-kernels"


def test_sixteen_threads_compile_once(cold: Path, variant: Variant, compiles: list[Variant]):
    other = dataclasses.replace(variant, threads=64)
    barrier = threading.Barrier(16)

    def ask(number: int):
        barrier.wait()
        return cache.get((variant, other)[number % 2])

    with ThreadPoolExecutor(16) as pool:
        kernels = list(pool.map(ask, range(16)))
    assert len(set(map(id, kernels))) == 2
    assert sorted(v.threads for v in compiles) == sorted((variant.threads, other.threads))


def test_every_field_and_the_toolchain_are_in_the_name(cold: Path, variant: Variant, monkeypatch: pytest.MonkeyPatch):
    def changed(value: object) -> object:
        if isinstance(value, bool):
            return not value
        return value + 1 if isinstance(value, int) else f"{value}x"

    names = {cache.entry_path(variant)}
    for field in dataclasses.fields(variant):
        if field.name != "op":
            value = changed(getattr(variant, field.name))
            names.add(cache.entry_path(dataclasses.replace(variant, **{field.name: value})))
    names.add(cache.entry_path(dataclasses.replace(variant, op="indexer_q_mxfp4")))
    assert len(names) == 1 + len(dataclasses.fields(variant))
    before = len(names)
    for name, value in (("_toolchain", ("nvidia-cutlass-dsl 0.0",)), ("sources_digest", "other sources")):
        with monkeypatch.context() as patch:
            patch.setattr(cache, name, lambda value=value: value)
            names.add(cache.entry_path(variant))
    assert len(names) == before + 2
    assert len(cache._toolchain()) == 5


def test_fill_writes_without_loading(cold: Path, make_workload, compiles: list[Variant], monkeypatch):
    variant = config.choose(make_workload(target="sm_100"), 1, dense=True)
    monkeypatch.setattr(cache, "_load", None)
    before = cache.count()
    cache.fill(variant)
    cache.fill(variant)
    assert compiles == [variant]
    assert cache.count() == before + 1
    assert cache.entry_path(variant).exists()


def test_compile_error_carries_the_compilers_message(cold: Path, variant: Variant, monkeypatch: pytest.MonkeyPatch):
    def refuse(variant: Variant, options: str = ""):
        raise ValueError("no such instruction")

    monkeypatch.setattr(compiling, "compile_variant", refuse)
    with pytest.raises(cache.CompileError, match="no such instruction"):
        cache.get(variant)
    assert not cold.exists()


def test_compiler_refuses_an_unknown_instruction(cold: Path, variant: Variant):
    with pytest.raises(cache.CompileError, match="CuTeDSL could not compile"):
        cache.get(dataclasses.replace(variant, load_modifier=".no_such_modifier"))


FORKED = """
import os, sys, threading
from iq_kernels_cute import cache
from iq_kernels_cute.indexer_q.config import Variant
variant = eval(sys.argv[1])
cache._lock.acquire()  # as another thread would hold it
child = os.fork()
if child == 0:
    done = []
    worker = threading.Thread(target=lambda: done.append(cache.get(variant)))
    worker.start()
    worker.join(60)
    os._exit(0 if done else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_forked_process_compiles(cold: Path, variant: Variant):
    answer = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKED, repr(variant)], capture_output=True, text=True, timeout=120
    )
    assert answer.stdout.strip() == "0", answer.stderr
    assert cache._read_entry(cache.entry_path(variant)) is not None
