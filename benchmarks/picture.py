"""Draws the result of run.py: how many times as good as Ray, and which share of the bare limit, on log scales.

python benchmarks/picture.py latest.json latest.png      (matplotlib, from the peers' environment)
"""

from __future__ import annotations

import json
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

COLOURS = {
    "weft": "#1b6ca8",
    "weft_cpp": "#1b6ca8",
    "multiprocessing": "#8a8a8a",
    "joblib": "#c48a3f",
    "dask": "#a25b5b",
}


def advantage(row: dict, name: str, base: str) -> float | None:
    if base == "ray" and row["subject"] == "weft_cpp":
        base = "ray_cpp"
    ours, theirs = row["values"].get(name), row["values"].get(base)
    if not ours or not theirs or ours["median"] <= 0 or theirs["median"] <= 0:
        return None
    ratio = ours["median"] / theirs["median"]
    return ratio if row["higher_is_better"] else 1 / ratio


def panel(axes, rows: list, base: str, title: str) -> None:
    labels, position = [], 0.0
    for row in reversed(rows):
        bars = [(name, advantage(row, name, base)) for name in ("dask", "joblib", "multiprocessing", row["subject"])]
        bars = [(name, value) for name, value in bars if value is not None]
        for i, (name, value) in enumerate(bars):
            axes.barh(position + i * 0.8, value, 0.75, color=COLOURS[name], label=name)
            axes.text(value * 1.08, position + i * 0.8, f"{value:.3g}×", va="center", fontsize=7)
        for goal in row["goals"]:
            if goal["against"] in (base, base + "_cpp") and goal.get("wanted"):
                ends = [position - 0.5, position + len(bars) * 0.8 - 0.3]
                axes.plot([goal["wanted"]] * 2, ends, color="black", lw=1.5)
        labels.append((position + (len(bars) - 1) * 0.4, row["title"]))
        position += len(bars) * 0.8 + 0.6
    axes.set_xscale("log")
    axes.axvline(1, color="black", lw=0.8, ls=":")
    axes.set_yticks([at for at, _ in labels], [text for _, text in labels], fontsize=8)
    axes.set_title(title, fontsize=10)
    axes.margins(x=0.15, y=0.01)
    found = dict(zip(*reversed(axes.get_legend_handles_labels())))
    if found:
        # Beside the panel, where no bar can hide behind it.
        axes.legend(found.values(), found.keys(), fontsize=7, loc="upper left", bbox_to_anchor=(1.01, 1))


def main(source: str, target: str) -> None:
    with open(source) as file:
        result = json.load(file)
    panels = []
    for base, title in (
        ("ray", "times as good as Ray (black line: the goal)"),
        ("bare", "share of the bare limit (black line: the goal)"),
    ):
        rows = [
            row
            for row in result["rows"]
            if any(advantage(row, name, base) for name in row["values"] if name not in ("ray", "ray_cpp", "bare"))
            and (base != "bare" or any(goal["against"] == "bare" for goal in row["goals"]))
        ]
        if rows:
            panels.append((rows, base, title))
    if not panels:
        print("no picture: nothing to compare")
        return
    heights = [0.5 + 0.55 * len(rows) for rows, _, _ in panels]
    figure, axes = plt.subplots(
        len(panels), 1, figsize=(10, sum(heights) + 1), squeeze=False, gridspec_kw={"height_ratios": heights}
    )
    for (rows, base, title), place in zip(panels, axes[:, 0]):
        panel(place, rows, base, title)
    about = result["machine"]
    figure.suptitle(
        f"{about['cpu']}, {about['cpus']} CPUs, {result['begun'][:10]}, {about['commit']}"
        + (" (quick: not worth quoting)" if result["quick"] else ""),
        fontsize=9,
    )
    figure.tight_layout()
    figure.savefig(target, dpi=130)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
