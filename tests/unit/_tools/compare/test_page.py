"""The page: what it says, that it needs nothing beside it, that a browser shows it; its plots."""

import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
from PIL import Image

from replicax._tools.compare import plots
from replicax._tools.compare.page import headline, to_html
from replicax._tools.compare.result import ScalePoint
from replicax._tools.compare.settings import Settings

SECTIONS = ("table", "accuracy", "throughput", "scaling", "verification", "environment", "again")
VOID = {"meta", "link", "br"}
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")


class Page(HTMLParser):
    """Reads a page: its tags with their attributes, its text, and what is not closed in order."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.words, self.open, self.faults = [], [], [], []
        self.feed(text)
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        if self.open.pop() != tag:
            self.faults.append(tag)

    def handle_data(self, data):
        if not {"style", "title"} & set(self.open):
            self.words.append(data)

    def every(self, name):
        return [attributes for tag, attributes in self.tags if tag == name]


def full(sample, **changes):
    """A comparison of everything: also on fewer devices, and by servers."""
    comparison = sample(**changes)
    servers = replace(
        comparison.measurement("mirrored"),
        strategy="parameter_server",
        compute_devices=("worker 0", "worker 1"),
        variable_devices=("server 0",),
        weight_difference=None,
    )
    return replace(
        comparison,
        settings=Settings(strategies=("one_device", "mirrored", "parameter_server"), repeats=2),
        measurements=(*comparison.measurements, servers),
        scaling=(ScalePoint(4, (2.0, 2.0)),),
    )


@pytest.fixture(scope="module")
def text(sample):
    return to_html(full(sample))


@pytest.fixture(scope="module")
def page(text):
    return Page(text)


def test_it_is_well_formed_and_names_its_language(page):
    assert page.faults == page.open == []
    assert page.every("html") == [{"lang": "en"}]


def test_ids_are_there_once_and_links_lead_to_them(page):
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert sorted(ids) == sorted(set(ids))
    links = [attributes["href"].removeprefix("#") for attributes in page.every("a")]
    assert links == list(SECTIONS)
    named = [
        attributes["aria-labelledby"]
        for _, attributes in page.tags
        if "aria-labelledby" in attributes
    ]
    assert {*links, *named} <= set(ids)


def test_nothing_is_loaded(text, page):
    assert not re.search(r"https?:|//[a-z]|@import|url\((?!#)", text)
    assert not {"script", "img", "iframe", "object", "embed"} & {tag for tag, _ in page.tags}
    addresses = [
        a[name] for _, a in page.tags for name in ("src", "href", "xlink:href") if name in a
    ]
    assert all(address.startswith(("#", "data:")) for address in addresses)


def test_the_headline_is_what_people_look_for(sample):
    assert headline(sample()).startswith("Every strategy ")
    assert headline(full(sample)).startswith("Every synchronous strategy ")
    assert headline(sample(difference=0.5)).startswith("1 of 2 strategies ")


def test_tiles_say_how_fast_each_is(page):
    # one_device: 1 s for each round; mirrored: 2 and 1.25 s, ratios 0.5 and 0.8, median 0.65
    assert (
        "mirrored ✓ same weights 0.65× speed 0.50× to 0.80× 92.50% right on test data" in page.text
    )
    assert "parameter_server asynchronous 0.65× speed" in page.text


def test_a_difference_is_seen_in_verdict_and_tile(sample):
    text = Page(to_html(sample(difference=0.5))).text
    assert "mirrored differs by 5.0e-01 in dense/bias" in text
    assert "✗ weights differ by 5.0e-01" in text


@pytest.mark.parametrize("difference", [float("nan"), float("inf"), 0.0])
def test_every_difference_can_be_drawn(sample, difference):
    drawn = "0: every bit is equal" if difference == 0 else str(difference)
    assert drawn in Page(to_html(sample(difference=difference))).text


def test_efficiency_of_accelerators_is_by_replica(sample):
    comparison = sample(mirrored=(0.5, 0.625))
    gpus = tuple(replace(device, platform="gpu") for device in comparison.machine.devices)
    machine = replace(comparison.machine, devices=gpus)
    text = Page(to_html(replace(comparison, machine=machine))).text
    assert "2 1.80 (1.60-2.00) 90%" in text  # twice one device would be all
    assert "the most to expect is the number of replicas" in text
    assert "virtual" not in text


def test_workers_on_the_cpu_are_not_judged_by_an_accelerator(sample):
    comparison = sample(difference=2e-3)
    one, two = comparison.measurements
    comparison = replace(comparison, measurements=(one, replace(two, strategy="multi_worker")))
    assert len(comparison.deviating) == 1  # here the others compute on the CPU, too
    gpus = tuple(replace(device, platform="gpu") for device in comparison.machine.devices)
    comparison = replace(comparison, machine=replace(comparison.machine, devices=gpus))
    assert comparison.deviating == ()
    assert comparison.largest_difference == 0
    text = Page(to_html(comparison)).text
    assert "multi_worker on the CPU" in text
    assert text.count("computed on the CPU, the others on GPU") == 2  # by the table and the plot


def test_the_command_asks_for_the_same_again(page, sample):
    assert (
        "replicax compare --dataset digits --model cnn --strategies "
        "one_device,mirrored,parameter_server --replicas 2 --workers 2 --epochs 8 "
        "--batch-size 64 --repeats 2 --seed 0" in page.text
    )


def test_what_comes_from_outside_is_escaped(sample):
    comparison = sample(difference=0.5)
    machine = replace(comparison.machine, processor="<script>alert('x')</script>")
    measurements = tuple(
        replace(m, differing_weight="<b>&") if m.weight_difference else m
        for m in comparison.measurements
    )
    text = to_html(replace(comparison, machine=machine, measurements=measurements))
    assert "<script>" not in text
    assert "&lt;script&gt;" in text
    assert "&lt;b&gt;&amp;" in text


def test_tables_have_headers_and_plots_have_titles(page):
    assert len(page.every("caption")) == len(page.every("table")) == 3
    assert all("scope" in attributes for attributes in page.every("th"))
    drawings = page.every("svg")
    assert len(drawings) == 5
    assert all(attributes["role"] == "img" for attributes in drawings)


@pytest.fixture(scope="module")
def browse():
    """Show a page in a real browser, without a window and without a network."""
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        pytest.skip(f"needs a browser: install one of {', '.join(BROWSERS)}, then `make test-slow`")

    def browse(page, profile, *options):
        command = [
            program,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",  # it is small in containers
            "--host-resolver-rules=MAP * ~NOTFOUND",
            "--hide-scrollbars",
            "--virtual-time-budget=1000",
            f"--user-data-dir={profile}",
            *options,
            page.as_uri(),
        ]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)

    return browse


# Reports, as text of the page, what a person sees: heights of sections, and how wide it all is.
LOOK = """<script>
addEventListener("load", () => {
  const sizes = [...document.querySelectorAll("section, svg")].map(
    (element) => Math.min(element.offsetHeight ?? 1e9, element.getBoundingClientRect().height));
  document.documentElement.dataset.seen = [
    Math.min(...sizes.filter(Number.isFinite)), sizes.length,
    document.documentElement.scrollWidth, innerWidth,
    performance.getEntriesByType("resource").length].join(" ");
});
</script>"""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("width", [1200, 500, 390])
def test_a_browser_shows_all_of_it(tmp_path, text, browse, width):
    page, picture = tmp_path / "report.html", tmp_path / "page.png"
    page.write_text(text.replace("</body>", f"{LOOK}</body>"), encoding="utf-8")
    size = f"--window-size={width},4000"
    ran = browse(page, tmp_path / "profile", size, "--enable-logging=stderr", "--dump-dom")
    seen = re.search(r'data-seen="([^"]+)"', ran.stdout)
    assert seen is not None, ran.stderr
    smallest, count, wide, window, loaded = map(float, seen[1].split())
    assert smallest > 10
    assert count == len(SECTIONS) + 5  # sections, plots
    assert wide <= window  # nothing sticks out, on a phone either
    assert loaded == 0
    assert "CONSOLE" not in ran.stderr  # no complaint of the page, such as an error of a script
    browse(page, tmp_path / "profile", size, f"--screenshot={picture}")
    pixels = np.asarray(Image.open(picture).convert("L"))
    assert pixels.shape[1] == width
    # The plots reach down the page: every 400 rows there is something to see.
    assert all(np.ptp(part) > 50 for part in np.array_split(pixels[:2800], 7))


def test_accuracy_of_each_strategy_by_epoch(sample):
    (axes,) = plots.accuracy_by_epoch(sample()).axes
    assert [list(line.get_xdata()) for line in axes.lines] == [[1, 2], [1, 2]]
    assert [list(line.get_ydata()) for line in axes.lines] == [[0.75, 0.925], [0.75, 0.925]]


def test_every_round_is_a_point_and_their_median_a_line(sample):
    (axes,) = plots.throughput(sample()).axes
    assert [list(line.get_xdata()) for line in axes.lines] == [[1000, 1000], [500, 800]]
    medians = [lines.get_segments()[0][0, 0] for lines in axes.collections]
    assert medians == [1000, 650]
