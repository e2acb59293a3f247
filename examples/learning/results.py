"""How each example ends: it says what it reached, fails below its bar, and draws its curves if it is asked to."""

import argparse
import sys


def finish(name, reached, bar, curves, x="", y=""):
    """Print the result and exit with 1 if it is below the bar. `--picture FILE` draws the curves, label to values."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--picture", metavar="FILE", help="draw the curves of the run into this PNG file")
    path = parser.parse_args().picture
    if path:
        draw(path, name, bar, curves, x, y)
    print(f"{name}: {reached:.3f}, the bar is {bar}")
    if reached < bar:
        sys.exit(1)
    print("ok")


def draw(path, name, bar, curves, x, y):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(4.8, 2.8), layout="constrained")
    for label, values in curves.items():
        marker = "." if len(values) < 10 else None  # a curve of one point has no line
        axes.plot(range(1, len(values) + 1), values, label=label, linewidth=1.2, marker=marker)
    axes.axhline(bar, color="grey", linestyle=":", linewidth=1, label="the bar")
    axes.set(title=name, xlabel=x, ylabel=y)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.legend(fontsize="small")
    figure.savefig(path, dpi=80)
