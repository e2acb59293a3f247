"""ray.experimental.ui: the timeline of a program's tasks as one page."""

from __future__ import annotations

import os
import tempfile

import weft

__all__ = ["task_timeline"]


def task_timeline(path=None) -> None:
    """Write a page that shows what ran when (self-contained HTML). In a notebook it is shown here; elsewhere its path
    is printed. `path`: where to write it; by default a new file among the temporary ones."""
    if path is None:
        descriptor, path = tempfile.mkstemp(prefix="weft-timeline-", suffix=".html")
        os.close(descriptor)
    page = weft.timeline_page()
    with open(os.fspath(path), "w", encoding="utf-8") as file:
        file.write(page)
    if not _show_in_notebook(page):
        print(f"the timeline of all tasks so far: {os.path.abspath(os.fspath(path))}")


def _show_in_notebook(page: str) -> bool:
    """Whether this is a notebook, and the page now shows in it."""
    import sys

    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is None or not hasattr(shell, "kernel"):  # not IPython, or one on a terminal
        return False
    from IPython.display import display  # type: ignore[import-not-found,unused-ignore]

    display(page)
    return True
