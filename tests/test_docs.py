"""What READMEs and changelogs say is true: their Python runs, a changelog's newest release is the version."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = sorted(path.parent for path in ROOT.glob("packages/*/pyproject.toml"))
BLOCKS = [
    pytest.param(block, id=f"{page.relative_to(ROOT)}-{number}")
    for page in (ROOT / "README.md", *(package / "README.md" for package in PACKAGES))
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL))
]


@pytest.mark.parametrize("block", BLOCKS)
def test_python_of_the_readmes_runs(block: str) -> None:
    exec(compile(block, "README.md", "exec"), {})


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_newest_release_of_the_changelog_is_the_version(package: Path) -> None:
    version = re.search(r'__version__ = "(.+)"', next(package.glob("src/*/_version.py")).read_text())
    release = re.search(r"^## (\S+) \(\d{4}-\d{2}-\d{2}\)$", (package / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert version is not None
    assert release is not None
    assert release[1] == version[1]


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_links_lead_somewhere(page: str) -> None:
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", (ROOT / page).read_text())
    assert targets
    assert not [target for target in targets if not (ROOT / target).exists()]


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_sessions_named_exist(page: str) -> None:
    sessions = set(re.findall(r"^def (\w+)\(session:", (ROOT / "noxfile.py").read_text(), re.MULTILINE))
    named = set(re.findall(r'nox (?:--no-venv )?-s "?(\w+)', (ROOT / page).read_text()))
    assert named
    assert named <= sessions
