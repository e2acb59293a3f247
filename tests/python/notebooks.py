"""Executes notebooks under `weft run`: for tests that have nbclient and ipykernel."""

from __future__ import annotations

import json
import sysconfig
from pathlib import Path

import nbformat
from helpers import run_driver

WEFT = str(Path(sysconfig.get_path("scripts")) / "weft")

# Runs under `weft run`, as `jupyter lab` would, and starts the kernel in another process.
EXECUTE = """
import os, sys
import nbformat
from nbclient import NotebookClient

path = sys.argv[1]
notebook = nbformat.read(path, 4)
NotebookClient(notebook, timeout=60, kernel_name="python3").execute()
nbformat.write(notebook, path)
print(os.getpid())
"""


def execute(folder: Path, cells: list, *options: str):
    """The outputs of each cell, and the pid of the process that started the kernel."""
    path = folder / "notebook.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells]), path)
    program = folder / "execute.py"
    program.write_text(EXECUTE)
    environment = {
        name: str(folder / name.lower()) for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR")
    }
    environment["JUPYTER_RUNTIME_DIR"] = str(folder / "runtime")
    driver = run_driver("", command=[WEFT, "run", *options, str(program), str(path)], env=environment, cwd=folder)
    return [cell["outputs"] for cell in json.loads(path.read_text())["cells"]], int(driver.stdout)
