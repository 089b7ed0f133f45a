"""The documentation as a site: it builds without a network, and describes every public name."""

from __future__ import annotations

import functools
import inspect
import json
import pkgutil
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
import recorded

ROOT = Path(__file__).parents[1]
WITHOUT_NETWORK = ["unshare", "--net", "--map-root-user"]
# Attributes by which a page loads something; a link to another site is none of them.
LOADS = {("link", "href"), ("script", "src"), ("img", "src"), ("iframe", "src"), ("source", "src")}


def run(*command):
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)


@functools.cache
def may_unshare():
    """Whether this user may start a program without a network."""
    return shutil.which("unshare") is not None and not run(*WITHOUT_NETWORK, "true").returncode


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    isolated = WITHOUT_NETWORK if may_unshare() else []
    built = run(
        *isolated, sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)
    )
    assert not built.returncode, built.stdout + built.stderr
    return folder


class Found(HTMLParser):
    """What a page loads, and the anchors that it has."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.anchors: set[str] = set()
        self.feed(page.read_text())

    def handle_starttag(self, tag, attrs):
        for name, value in attrs:
            if name == "id":
                self.anchors.add(value)
            is_canonical = tag == "link" and ("rel", "canonical") in attrs
            if (tag, name) in LOADS and not is_canonical:
                self.loaded.append(value)


@pytest.mark.skipif(not may_unshare(), reason="unshare --net is refused: the site was built online")
def test_the_site_builds_without_a_network(site):
    command = "import socket; print([name for _, name in socket.if_nameindex()])"
    assert run(*WITHOUT_NETWORK, sys.executable, "-c", command).stdout == "['lo']\n"
    assert (site / "index.html").stat().st_size > 1000


def test_pages_and_styles_load_nothing_from_other_hosts(site):
    external = re.compile(r"(https?:)?//")
    for page in site.rglob("*.html"):
        assert not [url for url in Found(page).loaded if external.match(url)], page
        assert not re.search(r"@import|url\(['\"]?(https?:)?//", page.read_text()), page
    for style in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(https?:)?//", style.read_text()), style


def public_names():
    """The recorded names of modules, without members of classes and the table of `replicax.tf`."""
    lines = recorded.PUBLIC.read_text().splitlines()
    names = {re.match(r"[\w.]+", line)[0] for line in lines}
    owners = {name.rpartition(".")[0] for name in names}
    classes = {line.partition("(")[0] for line in lines if "(" in line}
    modules = {name for name in owners - classes if name.rpartition(".")[2].islower()}
    return {
        name
        for name in names - modules
        if not name.startswith("replicax.tf.")
        and name.rpartition(".")[0] in modules
        and not inspect.ismodule(pkgutil.resolve_name(name))
    }


def test_every_public_name_has_an_entry(site):
    described = set()
    for page in (site / "reference").glob("*.html"):
        described |= Found(page).anchors
        described.update(re.findall(r"<td><code>(replicax\.[\w.]+)</code>", page.read_text()))
    assert len(public_names()) > 150
    assert public_names() <= described


def test_the_names_of_tf_are_in_their_table(site):
    table = (site / "reference" / "replicax.tf.html").read_text()
    for name in ("tf.GradientTape", "tf.data.Dataset", "tf.reduce_sum", "tf.keras.losses.mse"):
        assert f"<code>{name}</code>" in table


def test_the_search_finds_pages_and_names(site):
    index = json.loads((site / "search" / "search_index.json").read_text())
    places = {entry["location"] for entry in index["docs"]}
    assert {"fit.html", "reference/replicax.html#replicax.MirroredStrategy"} <= places
