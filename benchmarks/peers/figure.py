"""The figure of the study: share of the planted rule's profit against CPU seconds, by peer and kind of market."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np

from benchmarks.peers.study import OURS, PLANTED_POLICIES, Row

matplotlib.use("Agg")
from matplotlib import pyplot as plt

_COLUMNS = 3


def draw(rows: Sequence[Row], path: Path) -> None:
    """Draw a panel for each kind of market, with 95% intervals over seeds."""
    kinds = sorted({row.kind for row in rows})
    height = math.ceil(len(kinds) / _COLUMNS)
    figure, panels = plt.subplots(height, _COLUMNS, figsize=(12, 3.4 * height), squeeze=False, sharex=True)
    families = sorted({_family(row.peer) for row in rows if row.peer not in PLANTED_POLICIES}, key=lambda f: f != OURS)
    colours = dict(zip(families, plt.get_cmap("tab20").colors, strict=False))  # type: ignore[attr-defined]
    for panel, kind in zip(panels.flat, kinds, strict=False):
        panel.axhline(1.0, color="grey", linewidth=0.8)
        panel.axhline(0.0, color="grey", linewidth=0.8)
        for row in (row for row in rows if row.kind == kind and row.peer not in PLANTED_POLICIES):
            share, half = row.of_rule
            panel.errorbar(
                max(row.cpu_seconds, 0.1),
                share,
                yerr=None if np.isnan(half) else half,
                fmt="D" if row.peer == OURS else ("o" if "our inputs" in row.peer else "x"),
                color=colours[_family(row.peer)],
                label=_family(row.peer),
            )
        panel.set(title=kind, xscale="log", ylim=(-1.1, 1.4))
    for panel in panels.flat[len(kinds) :]:
        panel.axis("off")
    known = {label: handle for panel in panels.flat for handle, label in zip(*panel.get_legend_handles_labels())}  # noqa: B905
    figure.legend(known.values(), known.keys(), loc="lower center", ncol=6, frameon=False)
    figure.supxlabel("CPU seconds of learning", y=0.09)
    figure.supylabel("share of the planted rule's profit")
    figure.tight_layout(rect=(0.01, 0.12, 1, 1))
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _family(peer: str) -> str:
    return peer.split(",")[0]
