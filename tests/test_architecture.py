"""The house keeps its shape: import directions, lazy imports, one ABI, changelogs. Packages are found, not listed."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = sorted(path.parent for path in (ROOT / "packages").glob("*/pyproject.toml"))
SOURCES = {package.name: next((package / "src").iterdir()) for package in PACKAGES}
KERNELS = sorted(name for name in SOURCES if name != "iq-ops")
MODULES = {source.name for source in SOURCES.values()}
SHARED = ("_abi.py", "_checks.py")
every_package = pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)


def imports(path: Path, *, module_level: bool = False) -> set[str]:
    """Top-level names of what a file imports; with module_level, of what importing the file imports."""
    found: set[str] = set()

    def visit(node: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            if module_level and isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
                continue
            if module_level and isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                continue
            if isinstance(child, ast.Import):
                found.update(alias.name.split(".")[0] for alias in child.names)
            elif isinstance(child, ast.ImportFrom) and child.level == 0 and child.module:
                found.add(child.module.split(".")[0])
            elif isinstance(child, ast.Call) and ast.unparse(child.func).endswith("import_module"):
                name = child.args[0]
                if isinstance(name, ast.Constant) and not str(name.value).startswith("."):
                    found.add(str(name.value).split(".")[0])
            visit(child)

    visit(ast.parse(path.read_text()))
    return found


def python_files(package: Path) -> list[Path]:
    return sorted((package / "src").rglob("*.py"))


def test_there_are_packages_to_look_at():
    assert "iq-ops" in SOURCES
    assert KERNELS


@every_package
def test_no_package_imports_another(package):
    """iq_ops reaches kernels through entry points; kernels know neither iq_ops nor each other."""
    others = MODULES - {SOURCES[package.name].name}
    for path in python_files(package):
        assert not imports(path) & others, path


@pytest.mark.parametrize("name", KERNELS)
def test_kernel_files_are_device_code(name):
    kernels = sorted(SOURCES[name].rglob("kernel.py"))
    assert kernels, "a kernel package has a kernel.py"
    for path in kernels:
        assert "torch" not in imports(path), path


@pytest.mark.parametrize("name", KERNELS)
def test_provider_imports_nothing_heavy(name):
    heavy = {"torch", "triton", "cutlass", "tvm_ffi", "numpy"}
    assert not imports(SOURCES[name] / "provider.py", module_level=True) & heavy


@pytest.mark.parametrize("shared", SHARED)
def test_shared_files_are_identical_wherever_they_stand(shared):
    copies = {source / shared: (source / shared).read_bytes() for source in SOURCES.values()}
    assert len(set(copies.values())) == 1, f"these differ: {[str(path) for path in copies]}"


def test_the_abi_file_imports_the_standard_library_alone():
    path = SOURCES["iq-ops"] / "_abi.py"
    assert imports(path) <= set(sys.stdlib_module_names)


def imported_by(program: str) -> set[str]:
    """Top-level modules in sys.modules after a program ran in a new process."""
    listing = "; import sys; print(*{name.split('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", program + listing], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize("name", KERNELS)
def test_importing_a_kernel_package_imports_no_compiler(name):
    loaded = imported_by(f"import {SOURCES[name].name}, {SOURCES[name].name}.provider as p; p.describe()")
    assert not loaded & {"torch", "triton", "cutlass", "tvm_ffi", "numpy"}


def test_importing_iq_ops_imports_no_kernels_no_compiler_and_no_tool():
    beside_torch = imported_by("import iq_ops") - imported_by("import torch")
    assert "iq_ops" in beside_torch
    assert not beside_torch & (MODULES - {"iq_ops"})
    assert not beside_torch & {"triton", "cutlass", "tvm_ffi", "rich", "typer", "safetensors", "matplotlib"}
    own = subprocess.run(
        [sys.executable, "-c", "import iq_ops, sys; print(*[n for n in sys.modules if n.startswith('iq_ops.')])"],
        capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    assert {"iq_ops.cli", "iq_ops._warmup", "iq_ops._deprecated", "iq_ops.reference"}.isdisjoint(own)


def test_importing_iq_ops_leaves_cuda_alone():
    program = "import iq_ops, torch; assert not torch.cuda.is_initialized(); print(iq_ops.backends()[0].name)"
    program += "; assert not torch.cuda.is_initialized()"
    subprocess.run([sys.executable, "-W", "ignore", "-c", program], check=True, capture_output=True)


def test_importing_iq_ops_adds_little_to_importing_torch():
    """At most a tenth, by the interpreter's own count of what iq_ops and its submodules take themselves."""
    command = [sys.executable, "-X", "importtime", "-c", "import torch, iq_ops"]
    own: dict[str, list[int]] = {"torch": [], "iq_ops": []}
    for _ in range(2):
        report = subprocess.run(command, capture_output=True, text=True, check=True).stderr
        for name, times in own.items():
            (line,) = (line for line in report.splitlines() if line.rsplit("|", 1)[-1].strip() == name)
            times.append(int(line.split("|")[1]))
    assert min(own["iq_ops"]) <= 0.1 * min(own["torch"]), own


@every_package
def test_the_changelog_begins_with_the_version(package):
    version = re.search(r'__version__ = "(.+)"', (SOURCES[package.name] / "_version.py").read_text())
    newest = re.search(r"^## (\S+)", (package / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert version
    assert newest
    assert newest[1] == version[1]


@every_package
def test_the_package_is_typed_and_licensed(package):
    assert (SOURCES[package.name] / "py.typed").exists()
    assert (package / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


def test_triton_and_torch_are_never_pinned():
    for package in PACKAGES:
        assert not re.search(r'"(triton|torch)\s*==', (package / "pyproject.toml").read_text()), package


@every_package
def test_every_file_says_what_it_does_first(package):
    for path in python_files(package):
        assert ast.get_docstring(ast.parse(path.read_text())), path
