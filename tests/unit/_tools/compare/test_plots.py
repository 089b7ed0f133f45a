"""The pictures: what is drawn, and that equal curves can all be seen."""

from __future__ import annotations

import pytest

from replicax._tools.compare import plots


def test_accuracy_of_each_strategy_by_epoch(sample):
    (axes,) = plots.accuracy_by_epoch(sample()).axes
    assert [list(line.get_xdata()) for line in axes.lines] == [[1, 2], [1, 2]]
    assert [list(line.get_ydata()) for line in axes.lines] == [[0.75, 0.925], [0.75, 0.925]]


def test_equal_curves_differ_in_width_and_colour(sample):
    lower, upper = plots.accuracy_by_epoch(sample()).axes[0].lines
    assert lower.get_linewidth() > upper.get_linewidth() + 2
    assert lower.get_color() != upper.get_color()


def test_every_round_is_a_point_and_their_median_a_line(sample):
    (axes,) = plots.throughput(sample()).axes
    assert [list(line.get_xdata()) for line in axes.lines] == [[1000, 1000], [500, 800]]
    medians = [lines.get_segments()[0][0, 0] for lines in axes.collections]
    assert medians == [1000, 650]


@pytest.mark.parametrize("draw", [plots.accuracy_by_epoch, plots.throughput])
def test_a_picture_is_written(tmp_path, sample, draw):
    plots.save(draw, sample(), tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG\r\n")
