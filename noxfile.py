"""Every command a person types: `nox -l` lists them, `nox -s NAME -- ARGS` passes ARGS on to the tool behind it.

`nox --no-venv -s NAME` runs in the Python that runs Nox and installs nothing.
"""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from pathlib import Path

import nox

nox.needs_version = ">=2025.2.9"
nox.options.default_venv_backend = "virtualenv"
nox.options.reuse_venv = "yes"
nox.options.sessions = ["lint", "typecheck", "tests"]

ROOT = Path(__file__).parent
DIST = ROOT / "dist"
PACKAGES = sorted(path.parent.name for path in ROOT.glob("packages/*/pyproject.toml"))
SETTINGS = nox.project.load_toml(ROOT / "pyproject.toml")
LATEST_BENCH = ROOT / ".benchmarks" / "latest.json"


def group(name: str) -> list[str]:
    """List the requirements of one dependency group of the root pyproject.toml."""
    return list(nox.project.dependency_groups(SETTINGS, name))


def with_siblings(package: str) -> list[str]:
    """List `package` and the packages of this repository that it depends on, extras left out."""
    project = nox.project.load_toml(ROOT / "packages" / package / "pyproject.toml")["project"]
    names = [re.split(r"[^\w.-]", requirement, maxsplit=1)[0] for requirement in project["dependencies"]]
    return [package, *(sibling for name in names if name in PACKAGES for sibling in with_siblings(name))]


def install(session: nox.Session, packages: list[str], *requirements: str) -> None:
    """Install `packages` of this repository editable, and `requirements`; nothing under --no-venv."""
    if session.venv_backend != "none":
        editable = [argument for package in packages for argument in ("-e", f"packages/{package}")]
        session.install("-c", "constraints.txt", *requirements, *editable)


def python(session: nox.Session, *arguments: str | Path) -> None:
    """Run the session's Python, which under --no-venv is the one that runs Nox."""
    interpreter = sys.executable if session.venv_backend == "none" else "python"
    session.run(interpreter, *map(str, arguments), external=session.venv_backend == "none")


@nox.session
def tests(session: nox.Session) -> None:
    """Run every test of the repository; posargs go to pytest."""
    install(session, PACKAGES, *group("test"))
    python(session, "-m", "pytest", "-n", "2", *session.posargs)


@nox.session
@nox.parametrize("package", PACKAGES, ids=PACKAGES)
def unit(session: nox.Session, package: str) -> None:
    """Run one package's own tests with only that package's dependencies installed; posargs go to pytest."""
    install(session, with_siblings(package), *group("test"))
    python(session, "-m", "pytest", f"packages/{package}/tests", *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """Check style and format with ruff; posargs go to `ruff check` (--fix)."""
    install(session, [], *group("lint"))
    python(session, "-m", "ruff", "check", *session.posargs)
    python(session, "-m", "ruff", "format", "--check")


@nox.session
def typecheck(session: nox.Session) -> None:
    """Check types with mypy, strictly, a package at a time; posargs name the packages (default: all)."""
    install(session, PACKAGES, *group("typecheck"))
    for package in session.posargs or PACKAGES:
        python(session, "-m", "mypy", f"packages/{package}/src")


@nox.session
def build(session: nox.Session) -> None:
    """Build the sdist and, from it, the wheel of every package into dist/; posargs go to `python -m build`."""
    install(session, [], *group("build"))
    shutil.rmtree(DIST, ignore_errors=True)
    for package in PACKAGES:
        python(session, "-m", "build", "--no-isolation", "--outdir", DIST, *session.posargs, f"packages/{package}")


@nox.session(requires=["build"])
def downstream(session: nox.Session) -> None:
    """Install the wheels of `build` in a clean environment outside the tree, as a user would, and use them.

    The environment is made even under --no-venv: that it is clean is the point. Posargs go to `pip install`.
    """
    python(session, "tests/downstream/check_wheels.py", DIST)
    with tempfile.TemporaryDirectory(prefix="iq-ops-downstream-") as folder:
        outside = Path(folder)
        check = shutil.copy("tests/downstream/check_install.py", outside)
        golden = shutil.copytree("tests/golden", outside / "golden")
        python(session, "-m", "venv", outside / "venv")
        pip = [str(outside / "venv/bin/python"), "-m", "pip", "install", "--quiet", "-c", str(ROOT / "constraints.txt")]
        session.run(*pip, "--find-links", str(DIST), "iq-ops", *session.posargs, external=True)
        with session.chdir(outside):
            session.run("venv/bin/python", "-I", "-W", "error", str(check), str(DIST), str(golden), external=True)


@nox.session
def docs(session: nox.Session) -> None:
    """Build the pages into docs/_build/html, warnings being errors; posargs go to sphinx-build (-b linkcheck)."""
    install(session, [], *group("docs"))
    python(session, "-m", "sphinx", "-W", "--keep-going", "-q", *session.posargs, "docs", "docs/_build/html")


@nox.session
def demo(session: nox.Session) -> None:
    """Quantize a DeepSeek-V4 batch in both formats; posargs go to `iq-ops demo` (--plot FILE.png)."""
    install(session, with_siblings("iq-ops"), *group("plot"))
    python(session, "-m", "iq_ops", "demo", *session.posargs)


@nox.session
def bench(session: nox.Session) -> None:
    """Benchmark the kernels on a GPU, else the host side; posargs go to pytest (-m quick, --benchmark-json FILE)."""
    install(session, PACKAGES, *group("test"), *group("plot"))
    LATEST_BENCH.parent.mkdir(exist_ok=True)
    report = f"--benchmark-json={LATEST_BENCH}"
    python(session, "-m", "pytest", "benchmarks", "--ignore=benchmarks/tests", report, *session.posargs)


@nox.session
def bench_compare(session: nox.Session) -> None:
    """Gate the newest bench run against the committed baselines; posargs go to benchmarks/compare.py (RUN.json)."""
    python(session, "-m", "benchmarks.compare", *(session.posargs or [LATEST_BENCH]))


@nox.session
def bench_plot(session: nox.Session) -> None:
    """Draw docs/performance.png and .svg from the committed baselines; posargs go to benchmarks/plot.py."""
    install(session, [], *group("plot"))
    python(session, "-m", "benchmarks.plot", *session.posargs)
