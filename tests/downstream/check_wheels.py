"""Check what the built wheels and sdists contain, and what they must not: `check_wheels.py DIST`."""

import sys
import tarfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SDIST_ROOT = {"PKG-INFO", "pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE", ".gitignore", "src"}


def sources(package: Path) -> set[str]:
    """The files a wheel of `package` must carry, as paths inside it: all of src/ but bytecode."""
    found = (path for path in (package / "src").rglob("*") if path.is_file() and path.suffix != ".pyc")
    return {path.relative_to(package / "src").as_posix() for path in found}


def wheel_faults(wheel: Path, package: Path) -> list[str]:
    """Every way in which `wheel` differs from the sources of `package` and its metadata."""
    names = set(zipfile.ZipFile(wheel).namelist())
    metadata = {name for name in names if name.split("/")[0].endswith(".dist-info")}
    expected, module = sources(package), package.name.replace("-", "_")
    faults = [f"lacks {name}" for name in sorted(expected - names)]
    faults += [f"carries {name}, which is no source file" for name in sorted(names - metadata - expected)]
    faults += [f"lacks {module}/py.typed"] * (f"{module}/py.typed" not in names)
    for ending in ("/METADATA", "/entry_points.txt", "/licenses/LICENSE"):
        faults += [f"lacks *.dist-info{ending}"] * (not any(name.endswith(ending) for name in metadata))
    return faults


def sdist_faults(sdist: Path) -> list[str]:
    """Every file of `sdist` that does not belong, and every one it lacks."""
    with tarfile.open(sdist) as archive:
        paths = [Path(name) for name in archive.getnames()]
    top = {path.parts[1] for path in paths if len(path.parts) > 1}
    faults = [f"carries {name}" for name in sorted(top - SDIST_ROOT)]
    return faults + [f"lacks {name}" for name in sorted(SDIST_ROOT - {".gitignore"} - top)]


def main() -> int:
    """Print the faults of every package's wheel and sdist; 1 if there is one."""
    dist, faults = Path(sys.argv[1]), 0
    for package in sorted(path.parent for path in ROOT.glob("packages/*/pyproject.toml")):
        stem = package.name.replace("-", "_")
        wheels, sdists = list(dist.glob(f"{stem}-*.whl")), list(dist.glob(f"{stem}-*.tar.gz"))
        if len(wheels) != 1 or len(sdists) != 1:
            print(f"{package.name}: expected one wheel and one sdist in {dist}, got {wheels + sdists}")
            faults += 1
            continue
        for path, found in ((wheels[0], wheel_faults(wheels[0], package)), (sdists[0], sdist_faults(sdists[0]))):
            print(f"{path.name}: {'; '.join(found) or 'holds its sources, its metadata and nothing else'}")
            faults += len(found)
    return min(faults, 1)


if __name__ == "__main__":
    sys.exit(main())
