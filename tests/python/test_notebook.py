"""Notebooks under `weft run`: the kernel is a process that Jupyter starts, and it and its workers see our `ray`."""

from __future__ import annotations

import pytest

pytest.importorskip("nbformat")
pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

from notebooks import execute  # noqa: E402


def test_kernel_and_workers_see_our_ray(tmp_path):
    cells = [
        "import ray, os\nray.init(num_cpus=2, ignore_reinit_error=True)\nray.__name__",
        "@ray.remote\ndef where():\n    import ray, os\n    print('from a task')\n    return ray.__name__, os.getpid()",
        "names = ray.get([where.remote() for _ in range(2)])\n[name for name, _ in names]",
        "os.getpid()",
        "%time x = ray.get(ray.put(5))",
        "ray.put(1)",
        "@ray.remote\nclass Counter:\n    n = 0\n    def add(self):\n        self.n += 1\n        return self.n\n"
        "c = Counter.remote()\nray.get([c.add.remote() for _ in range(3)])",
    ]
    outputs, parent = execute(tmp_path, cells, "--ray-api=0.6")

    def value(cell):
        (result,) = [output for output in outputs[cell] if output["output_type"] == "execute_result"]
        return "".join(result["data"]["text/plain"])

    assert value(0) == "'weft.compat.ray'"
    assert value(2) == "['weft.compat.ray', 'weft.compat.ray']"
    assert int(value(3)) != parent
    assert "Wall time" in "".join(outputs[4][0]["text"])
    assert value(5).startswith("ObjectID(") and len(value(5)) == len("ObjectID()") + 40
    assert value(6) == "[1, 2, 3]"
    printed = "".join("".join(output.get("text", "")) for cell in outputs for output in cell)
    assert printed.count("from a task") == 2


def test_an_error_shows_in_the_cell(tmp_path):
    cells = [
        "import ray\n@ray.remote\ndef fail():\n    raise ValueError('in a task')",
        "try:\n    ray.get(fail.remote())\nexcept ValueError as error:\n    print(error.remote_traceback)",
    ]
    outputs, _ = execute(tmp_path, cells)
    text = "".join(outputs[1][0]["text"])
    assert "raise ValueError('in a task')" in text  # the source of the cell, which is in no file of the worker's


def test_timeline_shows_in_the_notebook(tmp_path):
    cells = [
        "import ray, ray.experimental.ui as ui\n@ray.remote\ndef f():\n    pass\nray.get([f.remote(), f.remote()])",
        "ui.task_timeline()",
        "import weft\nweft.timeline_page()",
    ]
    outputs, _ = execute(tmp_path, cells, "--ray-api=0.6")
    for cell, kind in ((1, "display_data"), (2, "execute_result")):
        (shown,) = outputs[cell]
        assert shown["output_type"] == kind
        assert "<iframe" in "".join(shown["data"]["text/html"])
        assert len("".join(shown["data"]["text/plain"])) < 100  # what a terminal would show
