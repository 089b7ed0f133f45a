"""The pictures: what is drawn, and that equal curves can all be seen."""

from __future__ import annotations

import pytest

from replicax._tools.compare import _plots


@pytest.fixture
def drawn(monkeypatch, sample):
    """Draw with a function and return the axes instead of writing a file."""
    figures = []
    monkeypatch.setattr(_plots, "_save", lambda figure, file: figures.append(figure))

    def draw(function, **changes):
        function(sample(**changes), None)
        return figures.pop().axes

    return draw


def test_accuracy_has_a_panel_for_training_and_one_for_tests(drawn):
    training, test = drawn(_plots.draw_accuracy)
    assert [list(line.get_ydata()) for line in training.lines] == [[0.7, 0.9], [0.7, 0.9]]
    assert [list(line.get_ydata()) for line in test.lines] == [[0.75, 0.925], [0.75, 0.925]]
    assert list(test.lines[0].get_xdata()) == [1, 2]


def test_equal_curves_differ_in_width_marker_and_colour(drawn):
    lower, upper = drawn(_plots.draw_accuracy)[0].lines
    assert lower.get_linewidth() > upper.get_linewidth() + 2
    assert lower.get_marker() != upper.get_marker()
    assert lower.get_color() != upper.get_color()


def test_the_legend_names_strategies_and_their_difference(drawn):
    legend = drawn(_plots.draw_accuracy)[1].get_legend()
    assert legend is not None
    assert [t.get_text() for t in legend.get_texts()] == ["one_device (0)", "mirrored (2.5e-06)"]


def test_every_axis_has_a_label(drawn):
    training, test = drawn(_plots.draw_accuracy)
    (speed,) = drawn(_plots.draw_throughput)
    assert (training.get_xlabel(), training.get_ylabel()) == ("epoch", "accuracy")
    assert test.get_xlabel() == "epoch"
    assert speed.get_ylabel() == "training examples per second"


def test_bars_are_medians_with_their_range(drawn):
    (axes,) = drawn(_plots.draw_throughput)
    assert [bar.get_height() for bar in axes.patches] == [1000, 650]
    segments = axes.collections[0].get_segments()
    assert segments[1][:, 1].tolist() == [500, 800]


def test_bars_are_labelled_with_the_ratio(drawn):
    (axes,) = drawn(_plots.draw_throughput)
    assert [text.get_text() for text in axes.texts] == ["1 ×", "0.65 ×\n(0.50 to 0.80)"]
    names = [label.get_text() for label in axes.get_xticklabels()]
    assert names == ["one_device\n1 replica", "mirrored\n2 replicas"]


@pytest.mark.parametrize("draw", [_plots.draw_accuracy, _plots.draw_throughput])
def test_a_picture_is_written(tmp_path, sample, draw):
    draw(sample(), tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG\r\n")
