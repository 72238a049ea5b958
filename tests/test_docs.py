"""READMEs, pages and changelogs are true: their Python runs, generated files are current, links lead somewhere."""

from __future__ import annotations

import ast
import inspect
import re
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

import iq_ops
from docs import generate
from iq_ops import reference

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = sorted(path.parent for path in ROOT.glob("packages/*/pyproject.toml"))
PAGES = sorted((ROOT / "docs").glob("*.md"))
READMES = [ROOT / "README.md", *(package / "README.md" for package in PACKAGES)]
GUIDES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *PAGES]
NEEDS_GPU = "# needs a GPU"
LANGUAGES = {"", "bash", "dockerfile", "python", "text", "toml", "{toctree}"}


@dataclass(frozen=True)
class Block:
    """One fenced block of a page: `line` is where its content begins."""

    language: str
    line: int
    text: str

    @property
    def needs_gpu(self) -> bool:
        return self.text.startswith(NEEDS_GPU + "\n")


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page, in order. A fence opens with three backticks or more, and closes with as many."""
    found = re.finditer(r"^[ ]*(`{3,})(.*)\n((?:.*\n)*?)[ ]*\1$", page.read_text(), re.MULTILINE)
    return [Block(m[2].strip(), page.read_text()[: m.start(3)].count("\n"), m[3]) for m in found]


def python(page: Path) -> list[Block]:
    return [block for block in blocks(page) if block.language == "python"]


def run(page: Path, examples: list[Block]) -> None:
    """Run blocks in one namespace, as a reader would; tracebacks show the page and its line."""
    namespace = {"__name__": page.stem}
    for block in examples:
        tree = ast.increment_lineno(ast.parse(block.text), block.line)
        exec(compile(tree, str(page), "exec"), namespace)


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


WITH_PYTHON = [page for page in (*READMES, *PAGES) if python(page)]
WITH_GPU = [page for page in WITH_PYTHON if any(block.needs_gpu for block in python(page))]
ON_THE_CPU = [page for page in WITH_PYTHON if not all(block.needs_gpu for block in python(page))]


@pytest.mark.parametrize("page", ON_THE_CPU, ids=name)
@pytest.mark.filterwarnings("default")  # the compiler's and the process group's own warnings are not ours to mend
def test_examples_run(page):
    run(page, [block for block in python(page) if not block.needs_gpu])


@pytest.mark.gpu
@pytest.mark.parametrize("page", WITH_GPU, ids=name)
def test_examples_that_need_a_gpu_run(page):
    run(page, python(page))


def test_the_pages_with_examples_are_found():
    assert {"README.md", "docs/integrating.md", "docs/engines.md"} <= {name(page) for page in ON_THE_CPU}
    assert "docs/integrating.md" in {name(page) for page in WITH_GPU}


@pytest.mark.parametrize("page", [*READMES, *GUIDES[1:]], ids=name)
def test_no_example_hides_behind_another_language(page):
    assert {block.language for block in blocks(page)} <= LANGUAGES
    text = page.read_text()
    assert text.count("```") == 2 * len(blocks(page)), "a fence does not close"
    assert "# needs a" not in "".join(block.text for block in python(page) if not block.needs_gpu)


@pytest.mark.parametrize("path", generate.files(), ids=name)
def test_generated_files_are_current(path):
    assert path.read_text(encoding="utf-8") == generate.files()[path], "run: python -m docs.generate"


def headings(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and MyST make them."""
    prose = re.sub(r"^[ ]*```.*?^[ ]*```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.+)$", prose, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", GUIDES, ids=name)
def test_links_lead_somewhere(page):
    for target, _, anchor in re.findall(r"\]\((?!https?:)([^)#]*)(#([^)]+))?\)", page.read_text()):
        linked = page.parent / target if target else page
        assert linked.exists(), target
        assert not anchor or anchor in headings(linked), f"{target}#{anchor}"


def test_every_page_is_in_the_table_of_contents():
    listed = {
        line.strip()
        for block in blocks(ROOT / "docs" / "index.md")
        if block.language == "{toctree}"
        for line in block.text.splitlines()
        if line.strip() and not line.startswith(":")
    }
    assert listed == {page.stem for page in PAGES} - {"index"}


@pytest.mark.parametrize("page", GUIDES, ids=name)
def test_sessions_named_exist(page):
    sessions = set(re.findall(r"^def (\w+)\(session:", (ROOT / "noxfile.py").read_text(), re.MULTILINE))
    named = set(re.findall(r'nox (?:--no-venv )?-s "?(\w+)', page.read_text()))
    assert sessions
    assert named <= sessions


def call(raw=False, **changed):
    arguments = {
        "positions": torch.arange(4),
        "q": torch.zeros(4, 8, 128, dtype=torch.bfloat16),
        "cos_sin_cache": torch.zeros(16, 64),
        "weights": torch.zeros(4, 8),
        "q_fp8": torch.zeros(4, 8, 128, dtype=torch.uint8),
        "weights_out": torch.zeros(4, 8),
        **changed,
    }
    inputs = [arguments[name] for name in ("positions", "q", "cos_sin_cache", "weights")]
    if raw:
        reference.indexer_q_fp8(weights_softmax_scale=1.0, weights_head_scale=1.0, **arguments)
    buffers = {"q_out": arguments["q_fp8"], "weights_out": arguments["weights_out"]}
    iq_ops.fused_indexer_q_rope_quant_out(*inputs, 1.0, 1.0, **buffers)


SHARED = torch.zeros(4, 8)
WRONG_CALLS = {
    "expected a tensor that needs no gradient": {"weights": torch.zeros(4, 8, requires_grad=True)},
    "expected dtype torch.uint8, got torch.float8_e4m3fn": {
        "q_fp8": torch.zeros(4, 8, 128, dtype=torch.float8_e4m3fn),
        "raw": True,
    },
    "expected memory of its own": {"weights": SHARED, "weights_out": SHARED},
    "expected stride(-1) == 1": {"q": torch.zeros(4, 128, 8, dtype=torch.bfloat16).transpose(1, 2)},
}


@pytest.mark.parametrize("quoted", WRONG_CALLS)
def test_errors_that_troubleshooting_quotes_are_raised(quoted):
    assert f'### "{quoted}"' in (ROOT / "docs" / "troubleshooting.md").read_text()
    with pytest.raises((TypeError, ValueError), match=re.escape(quoted)):
        call(**WRONG_CALLS[quoted])


@pytest.mark.parametrize("function", [iq_ops.fused_indexer_q_rope_quant, iq_ops.fused_indexer_q_rope_quant_out])
def test_signatures_written_out_are_those_of_the_code(function):
    """`name`, `name=default` a line, as in the code; one that begins with `...` goes on where the first one ended."""
    (block,) = (
        block.text
        for block in blocks(ROOT / "docs" / "integrating.md")
        if block.text.startswith(f"{function.__name__}(\n")
    )
    written = re.findall(r"^    (\w+)(?:=([\w.]+))?,", block, re.MULTILINE)
    code = inspect.signature(function).parameters.values()
    expected = [p for p in code if "    ...," not in block or p.kind is p.KEYWORD_ONLY]
    assert [name for name, _ in written] == [p.name for p in expected]
    assert [bool(default) for _, default in written] == [p.default is not p.empty for p in expected]


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_newest_release_of_the_changelog_is_the_version(package):
    version = re.search(r'__version__ = "(.+)"', next(package.glob("src/*/_version.py")).read_text())
    release = re.search(r"^## (\S+) \(\d{4}-\d{2}-\d{2}\)$", (package / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert version is not None
    assert release is not None
    assert release[1] == version[1]
