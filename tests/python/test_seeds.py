"""Programs that others wrote for Ray in 2018, unchanged, under `weft run --ray-api=0.6`.

They lie beside the repository, in ../shared/seeds, and nothing of them is copied here. Their code is taken out of the
text block by block; each exercise becomes a notebook of its own and runs in a process of its own, by IPython, because
they use `%time`. What they assert, wall-clock times included, must hold.
"""

from __future__ import annotations

import ast
import os
import re
import sysconfig
from pathlib import Path

import pytest
from helpers import run_driver
from weft.testing import Cluster

nbformat = pytest.importorskip("nbformat")
pytest.importorskip("IPython")
pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

from notebooks import execute  # noqa: E402

SEEDS = Path(os.environ.get("WEFT_SEEDS") or Path(__file__).resolve().parents[3] / "shared" / "seeds")
WEFT = str(Path(sysconfig.get_path("scripts")) / "weft")
EXERCISES = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12]  # 11 needs TensorFlow
TIMELINES = {1, 2, 3, 12}  # those that end by looking at the timeline


def seed(number: int) -> str:
    found = sorted(SEEDS.glob(f"{number:03}_*.txt")) if SEEDS.is_dir() else []
    if not found:
        pytest.skip(f"the seeds are not there: {SEEDS}")
    return found[0].read_text()


def blocks(text: str, opening: str) -> list[str]:
    """The code of a document; what is quoted or indented is explanation."""
    return re.findall(rf"^{opening}\n(.*?)^```$", text, re.M | re.S)


def notebook(path: Path, cells: list[str]) -> Path:
    made = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell.rstrip("\n")) for cell in cells])
    nbformat.write(made, path)
    return path


def run_cells(folder: Path, cells: list[str], *arguments: str, code: int = 0):
    """Run the cells in one process, under IPython on weft with Ray's names of 2018."""
    path = notebook(folder / "exercise.ipynb", cells)
    command = [WEFT, "run", "--ray-api=0.6", *arguments]
    command += ["-m", "IPython", "--colors=NoColor", "--no-banner", "--no-confirm-exit"]
    environment = {"IPYTHONDIR": str(folder / "ipython"), "TMPDIR": str(folder)}
    return run_driver("", command=[*command, str(path)], env=environment, cwd=folder, code=code, seconds=90)


def test_a_cell_that_fails_is_noticed(tmp_path):
    driver = run_cells(tmp_path, ["import ray", "assert ray.get(ray.put(1)) == 2, 'planted'"], code=1)
    assert "planted" in driver.stdout + driver.stderr


def cells_of(number: int) -> list[str]:
    text = seed(3)
    (body,) = re.findall(rf"^## Exercise {number} - .*?(?=^## Exercise |\Z)", text, re.M | re.S)
    cells = blocks(body, "```python")
    assert len(cells) >= 4
    assert sum("assert" in cell for cell in cells) >= 1
    return cells


@pytest.mark.alone  # an exercise says how long it may take
@pytest.mark.parametrize("number", EXERCISES)
def test_exercise_on_three_nodes(number, tmp_path):
    """The nodes have together what the exercise asks for; `weft run` ignores what it asks for, with one warning."""
    cells = cells_of(number)
    (asked,) = [cell for cell in cells if "ray.init(" in cell]
    cpus = int(re.search(r"num_cpus=(\d+)", asked)[1])
    gpus = int((re.search(r"num_gpus=(\d+)", asked) or [0, 0])[1])
    custom = ast.literal_eval((re.search(r"resources=(\{.*?\})", asked) or [0, "{}"])[1])
    small = cpus // 4
    with Cluster(head={"num_cpus": small}) as cluster:
        cluster.add_node(num_cpus=small)
        cluster.add_node(num_cpus=cpus - 2 * small, num_gpus=gpus, resources=custom)
        driver = run_cells(tmp_path, cells, f"--address={cluster.address}")
    assert "Traceback" not in driver.stdout + driver.stderr
    assert (driver.stdout + driver.stderr).count("has no effect under weft run --address") == 1


@pytest.mark.alone  # an exercise says how long it may take
@pytest.mark.parametrize("number", EXERCISES)
def test_exercise(number, tmp_path):
    driver = run_cells(tmp_path, cells_of(number))
    assert "Traceback" not in driver.stdout + driver.stderr
    if number == 2:
        (printed,) = re.findall(r"The losses are \[(.*)\]", driver.stdout)
        assert re.fullmatch(r"ObjectID\([0-9a-f]{40}\)(, ObjectID\([0-9a-f]{40}\)){3}", printed)
    if number == 8:
        assert driver.stdout.count("Wall time") == 4
    if number in TIMELINES:
        pages = re.findall(r"\S+\.html", driver.stdout)
        assert len(pages) == 1 and "<html" in Path(pages[0]).read_text()


def test_ray_part_of_the_second_seed(tmp_path):
    """Its blocks are one program; what the comments say an expression gives is what it gives."""
    text = seed(2)
    (body,) = re.findall(r"^# Ray.*?(?=^# Caffe)", text, re.M | re.S)  # the next part
    cells = blocks(body, "```")
    assert len(cells) >= 10
    outputs, _ = execute(tmp_path, cells, "--ray-api=0.6")
    checked = 0
    for cell, shown in zip(cells, outputs):
        comment = cell.rstrip().splitlines()[-1].rpartition("#")[2].strip()
        if not comment or comment == cell.rstrip().splitlines()[-1].strip():
            continue  # no comment
        (value,) = ["".join(each["data"]["text/plain"]) for each in shown if each["output_type"] == "execute_result"]
        if comment.startswith("ObjectID"):
            assert re.fullmatch(r"ObjectID\([0-9a-f]{40}\)", value)
        else:
            assert ast.literal_eval(value) == ast.literal_eval(comment)
        checked += 1
    assert checked >= 5
