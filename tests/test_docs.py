"""Everything the documentation shows runs: snippets, docstring examples, example programs, links.

A snippet is a fenced block of Python. The snippets of one file run in order, as one program, in a
process of their own, forked from one that has imported JAX and Keras. Two marks, each in the line
before the fence:

    <!-- not run: reason -->    the block is skipped; for code that needs TensorFlow
    <!-- raises: Name -->       the block ends with this error

A comment behind a `print` is its output, and is compared.
"""

import re
import tempfile
from collections import Counter
from pathlib import Path

import pytest

from helpers import LEAN, WITH_PLOTS
from zygote import Zygote

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").glob("*.md"))]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))

PICTURE = str(Path(tempfile.gettempdir()) / "replicax-example.png")

# Whose processes draw, or load scikit-learn's digits.
DRAWS = ("tools.md",)

# Small settings; an example without an entry fails, so that no new one goes untested.
EXAMPLE_ARGUMENTS = {
    "central_storage.py": [["--epochs", "1"]],
    "cifar10_walkthrough.py": [
        ["--epochs", "1", "--train", "256", "--test", "64", "--picture", PICTURE]
    ],
    "compare_strategies.py": [["--epochs", "1", "--batch-size", "300", "--picture", PICTURE]],
    "custom_loop.py": [["--epochs", "1", "--batch-size", "301"]],
    "debugging.py": [["--steps", "6"]],
    "fit_mirrored.py": [
        ["--epochs", "1", "--batch-size", "500", "--strategy", name]
        for name in ("mirrored", "central_storage")
    ],
    "gradient_accumulation.py": [["--steps", "2", "--micro-batches", "2"]],
    "input_pipeline.py": [["--epochs", "1"]],
    "multi_worker.py": [["--epochs", "1", "--steps", "5"]],
    "news_classifier.py": [["--epochs", "3", "--picture", PICTURE]],
    "one_device.py": [["--steps", "21"]],
    "parameter_server.py": [
        ["--engine", "threads", "--epochs", "1", "--ratings", "2000", "--servers", "2"]
    ],
    "pure_jax.py": [["--steps", "4"]],
    "resnet.py": [["--steps", "2"]],
    "slow_network.py": [["--epochs", "1", "--replicas", "2", "--picture", PICTURE]],
    "tpu_fallback.py": [["--epochs", "1", "--batch-size", "500"]],
}

RUN_SNIPPETS = """
import builtins, pathlib, re, sys, textwrap

BLOCK = re.compile(r"^( *)```python\\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
MARK = re.compile(r"<!-- (not run|raises): (.+?) -->$")

path = sys.argv[1]
text = pathlib.Path(path).read_text()
lines = text.split("\\n")
namespace = {"__name__": "__main__"}
wrong = []


def compared(*values, **options):
    builtins.print(*values, **options)
    number = sys._getframe(1).f_lineno
    comment = lines[number - 1].partition("  # ")[2].strip()
    printed = " ".join(str(value) for value in values)
    if comment and comment != printed:
        wrong.append(f"{path}:{number}: the comment says {comment!r}, printed was {printed!r}")


namespace["print"] = compared
for block in BLOCK.finditer(text):
    line = text.count("\\n", 0, block.start())  # of the fence, counted from 0
    mark = MARK.search(lines[line - 1]) if line else None
    kind, detail = mark.groups() if mark else (None, None)
    if kind == "not run":
        continue
    # Empty lines in front, so that line numbers are those of the page.
    source = "\\n" * (line + 1) + textwrap.dedent(block[2])
    try:
        exec(compile(source, path, "exec"), namespace)
    except Exception as error:
        if kind != "raises" or type(error).__name__ != detail:
            raise
        builtins.print(f"{path}:{line}: {error}")
    else:
        if kind == "raises":
            sys.exit(f"{path}:{line + 1}: the block should raise {detail}, but nothing was raised")
sys.exit("\\n".join(wrong) or 0)
"""

RUN_DOCTESTS = """
import doctest, importlib, pkgutil, sys
import replicax
from replicax._core import seams

tested, failures = 0, []
for module in pkgutil.walk_packages(replicax.__path__, "replicax."):
    if module.name.endswith("__main__"):
        continue
    try:
        loaded = importlib.import_module(module.name)
    except ModuleNotFoundError as error:
        if error.name.partition(".")[0] == "replicax":
            raise
        continue  # needs a package of an extra
    report = []
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    runner = doctest.DocTestRunner(optionflags=flags)
    try:
        found = doctest.DocTestFinder(exclude_empty=True).find(loaded, module.name)
    except ValueError as malformed:
        found, report = [], [f"{module.name}: {malformed}\\n"]
    for test in found:
        if test.examples:
            seams.speaks_tensorflow = test.name.startswith("replicax.tf")
            result = runner.run(test, out=report.append)
            tested += 1
            replicax.experimental_set_strategy(None)
    failures += report
print(tested, "docstrings with examples")
sys.exit("".join(failures) or 0)
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Run Python with some arguments; return what it printed, or fail."""
    zygote = Zygote(**WITH_PLOTS)
    output = tmp_path_factory.mktemp("docs") / "output"

    def run_one(*command, variables=None):
        code = zygote.run(*command, output=output, timeout=250, variables=variables)
        printed = output.read_text(errors="replace")
        if code:
            pytest.fail(f"exit code {code}\n{printed[-10000:]}", pytrace=False)
        return printed

    yield run_one
    zygote.close()


@pytest.mark.parametrize(
    "page", [pytest.param(README, marks=pytest.mark.core), *PAGES[1:]], ids=lambda page: page.name
)
def test_snippets_run(run, page):
    variables = None if page.name in DRAWS else LEAN
    run("-c", RUN_SNIPPETS, str(page.relative_to(ROOT)), variables=variables)


def test_docstring_examples_run(run):
    assert int(re.search(r"(\d+) docstrings", run("-c", RUN_DOCTESTS))[1]) >= 30


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_examples_run(run, example):
    assert "usage:" in run(str(example), "--help")
    for arguments in EXAMPLE_ARGUMENTS[example.name]:
        assert run(str(example), *arguments)


def test_every_page_is_found_from_the_index():
    linked = {(ROOT / "docs" / link).resolve() for link in links(ROOT / "docs" / "index.md")}
    assert set(PAGES[1:]) - linked == {ROOT / "docs" / "index.md"}


def test_each_page_is_in_the_navigation_once():
    text = (ROOT / "mkdocs.yml").read_text()
    named = Counter(re.findall(r"^ +- (?:.+: )?([\w-]+\.md)$", text, flags=re.M))
    assert named == Counter(page.name for page in PAGES[1:])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for link in links(page):
        target, _, anchor = link.partition("#")
        file = (page.parent / target).resolve() if target else page
        assert file.exists(), f"{page.name} links to {link}, which does not exist"
        assert file.is_relative_to(ROOT)
        if anchor:
            assert anchor in anchors(file), f"{page.name} links to {link}; there is no such heading"


def test_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_code_that_is_not_run_needs_what_is_not_here(page):
    text = page.read_text()
    for reason, block in re.findall(r"<!-- not run: (.+?) -->\n```python\n(.*?)```", text, re.S):
        assert {"needs TensorFlow": "tf.", "needs Ray Tune": "tune."}[reason] in block
    assert text.count("<!-- not run") == len(
        re.findall(r"<!-- not run: .+? -->\n```python\n", text)
    )


def links(page):
    """The relative links of a page, without its code."""
    text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(), flags=re.S)
    found = re.findall(r"\]\(([^)\s]+)\)", text)
    return [link for link in found if not re.match(r"[a-z]+:", link)]


def anchors(page):
    """What GitHub makes of the headings of a page."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.S | re.M)
    headings = re.findall(r"^#+ (.+)$", text, flags=re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
