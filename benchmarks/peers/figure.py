"""The figure of the study: share of the planted rule's profit against CPU seconds, by peer and kind of market."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np

from benchmarks.peers.deep.agents import ALGORITHMS
from benchmarks.peers.study import OURS, PLANTED_POLICIES, Row

matplotlib.use("Agg")
from matplotlib import pyplot as plt

_COLUMNS = 3
_LEAST_SECONDS = 1.0
_MARKS = "Dosv^<>Pph*"


def draw(rows: Sequence[Row], path: Path) -> None:
    """Draw a panel for each kind of market, with 95% intervals over seeds; the one-line rules are left out."""
    shown = [row for row in rows if row.peer not in PLANTED_POLICIES and row.cpu_seconds >= _LEAST_SECONDS]
    kinds = sorted({row.kind for row in shown})
    height = math.ceil((len(kinds) + 1) / _COLUMNS)
    figure, panels = plt.subplots(height, _COLUMNS, figsize=(12, 3.6 * height), squeeze=False, layout="constrained")
    families = sorted({_family(row.peer) for row in shown}, key=lambda family: (family != OURS, family))
    for panel, kind in zip(panels.flat, kinds, strict=False):
        for share, name in ((0.0, None), (1.0, "planted rule")):
            panel.axhline(share, color="grey", linewidth=0.8, label=name)
        for row in (row for row in shown if row.kind == kind):
            place, (share, half) = families.index(_family(row.peer)), row.of_rule
            error = None if np.isnan(half) else half
            style = {"color": f"C{place}", "fmt": _MARKS[place % len(_MARKS)], "label": _family(row.peer)}
            panel.errorbar(row.cpu_seconds, share, yerr=error, **style)
        panel.set(title=kind, xscale="log", xlim=(1.0, 1500.0), ylim=(-0.4, 1.4))
    for panel in panels.flat[len(kinds) :]:
        panel.axis("off")
    found = [item for panel in panels.flat for item in zip(*panel.get_legend_handles_labels(), strict=True)]
    known = {label: handle for handle, label in found}
    panels.flat[-1].legend(known.values(), known.keys(), loc="center", frameon=False)
    figure.supxlabel("CPU seconds of learning")
    figure.supylabel("share of the planted rule's profit")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _family(peer: str) -> str:
    """Return the peers that share a mark."""
    name, _, variant = peer.partition(", ")
    if name in ALGORITHMS:
        return f"deep agents, {variant}"
    return peer if name == "perceptrons" else "our agents otherwise searched" if variant else name
