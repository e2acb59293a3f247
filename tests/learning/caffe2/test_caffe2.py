"""Caffe2's own Python package on weft: the manual's program, and nets in tasks and actors.

Runs in the environment `caffe2`, whose Python is 3.9. The manual lies beside the repository, in ../shared/seeds.
"""

from __future__ import annotations

import os
import re
import sys
import sysconfig
from pathlib import Path

import numpy as np
import pytest
import weft
from helpers import run_driver

ROOT = Path(__file__).resolve().parents[3]
SEEDS = Path(os.environ.get("WEFT_SEEDS") or ROOT.parent / "shared" / "seeds")
WEFT = str(Path(sysconfig.get_path("scripts")) / "weft")


def manual() -> str:
    """The program of the manual's part on Caffe2, as it is printed."""
    found = sorted(SEEDS.glob("002_*.txt"))
    if not found:
        pytest.skip(f"the seeds are not there: {SEEDS}")
    (part,) = re.findall(r"^# Caffe2.*", found[0].read_text(), re.M | re.S)
    (program,) = re.findall(r"^```\n(from caffe2\.python.*?)^```$", part, re.M | re.S)
    return program


def check_manual(printed: str) -> None:
    """It prints an array, its shape, and what it fetched: the same array."""
    fed, shape, fetched = re.fullmatch(r"(.*?)\n(\([\d, ]+\))\n(.*?)\n*", printed, re.S).groups()
    assert shape == "(4, 3, 2)"
    assert fed == fetched
    assert len(re.findall(r"\d\.\d+", fed)) == 24


def test_environment():
    assert sys.version_info[:2] == (3, 9)
    assert Path(weft.__file__).resolve().is_relative_to(ROOT)
    import caffe2.python

    assert not Path(caffe2.python.__file__).resolve().is_relative_to(ROOT)


@pytest.mark.parametrize("command", [[sys.executable], [WEFT, "run"], [WEFT, "run", "--ray-api=0.6"]], ids=len)
def test_program_of_the_manual(tmp_path, command):
    (tmp_path / "program.py").write_text(manual())
    check_manual(run_driver("", command=[*command, "program.py"], cwd=tmp_path).stdout)


@weft.remote
def run_source(source: str) -> str:
    import contextlib
    import io

    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(source, {"__name__": "program"})
    return out.getvalue()


@weft.remote
class Runner:
    def run(self, source: str) -> str:
        import contextlib
        import io

        with contextlib.redirect_stdout(io.StringIO()) as out:
            exec(source, {"__name__": "program"})
        return out.getvalue()


def test_program_of_the_manual_in_tasks_and_actors(session):
    program = manual()
    runners = [Runner.remote() for _ in range(2)]
    calls = [run_source.remote(program) for _ in range(4)] + [runner.run.remote(program) for runner in runners * 2]
    printed = weft.get(calls)
    for each in printed:
        check_manual(each)
    assert len(set(printed)) == len(calls)  # each draws numbers of its own


@weft.remote
def fed_and_fetched(array):
    from caffe2.python import workspace

    workspace.ResetWorkspace()
    workspace.FeedBlob("x", array)
    return workspace.FetchBlob("x"), workspace.Blobs()


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64", "uint8", "bool"])
def test_blobs_of_stored_arrays(session, dtype):
    array = np.arange(24).reshape(2, 3, 4).astype(dtype)
    fetched, blobs = weft.get(fed_and_fetched.remote(weft.put(array)))
    assert fetched.dtype == array.dtype and fetched.shape == array.shape and (fetched == array).all()
    assert blobs == ["x"]


def test_what_is_changed_in_a_workspace_stays_there(session):
    """The stored array is read-only and shared; Caffe2 has a copy, which its operators may write to."""

    @weft.remote
    def halved(array):
        from caffe2.python import core, workspace

        workspace.FeedBlob("x", array)
        workspace.RunOperatorOnce(core.CreateOperator("Scale", ["x"], ["x"], scale=0.5))
        return workspace.FetchBlob("x")

    array = np.ones(100_000, np.float32)
    ref = weft.put(array)
    assert (weft.get(halved.remote(ref)) == 0.5).all()
    assert (weft.get(ref) == 1).all()


def test_small_net_of_the_document(tmp_path):
    text = (ROOT / "docs" / "user" / "learning.md").read_text()
    (section,) = re.findall(r"^## Caffe2\n.*?(?=^## |\Z)", text, re.M | re.S)
    (program,) = re.findall(r"^```python caffe2\n(.*?)^```$", section, re.M | re.S)
    (tmp_path / "program.py").write_text(program)
    driver = run_driver("", command=[sys.executable, "program.py"], cwd=tmp_path)
    (expected,) = re.findall(r"print\(.*#\s(\{.*\})$", program, re.M)
    assert driver.stdout.splitlines() == [expected]


def test_errors_of_caffe2_arrive(session):
    @weft.remote
    def unknown_operator():
        from caffe2.python import core, workspace

        workspace.RunOperatorOnce(core.CreateOperator("NoSuchOperator", [], ["y"]))

    @weft.remote
    def unknown_blob():
        from caffe2.python import workspace

        return workspace.FetchBlob("nowhere")

    with pytest.raises(RuntimeError, match="NoSuchOperator") as failed:
        weft.get(unknown_operator.remote())
    assert isinstance(failed.value, weft.TaskError)
    with pytest.raises(weft.TaskError, match="nowhere"):
        weft.get(unknown_blob.remote())
