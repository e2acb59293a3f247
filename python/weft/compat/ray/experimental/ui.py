"""ray.experimental.ui: the timeline of a program's tasks as one page."""

from __future__ import annotations

import os
import tempfile

import weft

__all__ = ["task_timeline"]

_HEIGHT = 600  # pixels of a notebook's page


def task_timeline(path=None) -> None:
    """Write a page that shows what ran when (self-contained HTML). In a notebook it is shown here; elsewhere its path
    is printed. `path`: where to write it; by default a new file among the temporary ones."""
    if path is None:
        descriptor, path = tempfile.mkstemp(prefix="weft-timeline-", suffix=".html")
        os.close(descriptor)
    path = os.fspath(weft.timeline_page(path) or path)
    if not _show_in_notebook(path):
        print(f"the timeline of all tasks so far: {path}")


def _show_in_notebook(path: str) -> bool:
    """Whether this is a notebook, and the page now shows in it."""
    import sys

    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is None or not hasattr(shell, "kernel"):  # not IPython, or one on a terminal
        return False
    import base64

    from IPython.display import IFrame, display  # type: ignore[import-not-found,unused-ignore]

    with open(path, "rb") as file:
        page = base64.b64encode(file.read()).decode()
    # In a frame of its own: the page's styles and scripts are not the notebook's. As data, because a notebook's server
    # does not serve files from elsewhere.
    display(IFrame(f"data:text/html;base64,{page}", "100%", _HEIGHT))
    return True
