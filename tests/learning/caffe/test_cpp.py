"""Caffe in C++ tasks and actors: examples/caffe, compiled against the weft of this environment."""

from __future__ import annotations

import re
import subprocess
import sysconfig
from pathlib import Path

import numpy as np
import pytest
import weft
from helpers import run_driver
from weft.compat import caffe

ROOT = Path(__file__).resolve().parents[3]
WEFT = str(Path(sysconfig.get_path("scripts")) / "weft")

SCALE = """
layer { name: "input" type: "Input" top: "x" input_param { shape { dim: 1 } } }
layer { name: "scale" type: "Power" bottom: "x" top: "y" power_param { scale: 2 } }
"""


def run(*command) -> str:
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, f"{command}:\n{result.stdout}\n{result.stderr}"
    return result.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory, caffe_folder):
    folder = tmp_path_factory.mktemp("caffe")
    source, weft_folder = ROOT / "examples" / "caffe", run(WEFT, "--cmake-dir").strip()
    run("cmake", "-S", source, "-B", folder, "-G", "Ninja", f"-Dweft_DIR={weft_folder}", f"-DCAFFE={caffe_folder}")
    run("cmake", "--build", folder)
    return folder


@pytest.fixture
def tasks(built, session):
    return weft.cpp.library(str(built / "libcaffe_tasks.so"))


def test_program(built):
    driver = run_driver("", command=[str(built / "train")])
    assert driver.stdout.splitlines() == [
        "0 0 0 1 2 3 in 2 rows of 3",
        "an unknown layer was refused",
        "a GPU was refused",
        "y = 0.100 x + 0.300",
        "ok: Caffe in tasks and actors",
    ]


def test_abi_is_hidden(caffe_folder):
    """A new std::string in the shim would be read as an old one. What it exports for others is C."""
    shim = caffe_folder / "lib" / "libcaffe_shim.so"
    exported = {line.split()[-1] for line in run("nm", "--dynamic", "--defined-only", shim).splitlines()}
    declared = set(re.findall(r"\b(cf_\w+)\(", (caffe_folder / "interface" / "caffe_shim.h").read_text()))
    assert len(declared) > 30 and declared <= exported
    assert "__cxx11" not in run("nm", "--dynamic", "--undefined-only", shim)


def test_snippets_of_the_document(tasks):
    text = (ROOT / "docs" / "user" / "learning.md").read_text()
    (section,) = re.findall(r"^## Caffe\n.*?(?=^## |\Z)", text, re.M | re.S)
    (function,) = re.findall(r"^```c\+\+\n(.*?)^```$", section, re.M | re.S)
    assert function in (ROOT / "examples" / "caffe" / "train.cc").read_text()


@pytest.mark.parametrize("shape", [(6,), (2, 3), (1, 2, 3), (2, 1, 3, 1)])
def test_net_in_a_task(tasks, shape):
    array = np.arange(6, dtype=np.float32).reshape(shape)
    doubled = weft.get(tasks.forward.remote(SCALE, "", "x", weft.put(array), "y"))
    assert doubled.shape == shape and doubled.dtype == np.float32
    assert (doubled == 2 * array).all()


def test_what_cpp_has_trained_python_and_cpp_can_use(tasks, tmp_path):
    net = """
    layer {
      name: "points" type: "Input" top: "x" top: "y"
      input_param { shape { dim: 50 dim: 1 } shape { dim: 50 dim: 1 } }
    }
    layer { name: "line" type: "InnerProduct" bottom: "x" top: "guess" inner_product_param { num_output: 1 } }
    """
    loss = 'layer { name: "loss" type: "EuclideanLoss" bottom: "guess" bottom: "y" top: "loss" }'
    solver = tasks.Solver.remote()
    with pytest.raises(weft.TaskError, match="call create first"):
        weft.get(solver.step.remote(1))
    weft.get(solver.create.remote(f'base_lr: 0.3 lr_policy: "fixed" train_net_param {{ {net} {loss} }}'))
    x = np.linspace(-1, 1, 50, dtype=np.float32).reshape(50, 1)
    weft.get([solver.feed.remote("x", x), solver.feed.remote("y", 0.1 * x + np.float32(0.3))])
    assert weft.get(solver.step.remote(200)) == 200
    path = str(tmp_path / "line.caffemodel")
    weft.get(solver.save.remote(path))
    guess = weft.get(tasks.forward.remote(net, path, "x", x, "guess"))
    np.testing.assert_allclose(guess, 0.1 * x + 0.3, atol=1e-3)
    with pytest.raises(weft.TaskError, match="Cannot copy param 0 weights from layer 'line'; shape mismatch"):
        weft.get(tasks.forward.remote(net.replace("num_output: 1", "num_output: 2"), path, "x", x, "guess"))
    (tmp_path / "net.prototxt").write_text(net)
    in_python = caffe.Net(str(tmp_path / "net.prototxt"), path, caffe.TEST)
    in_python.blobs["x"].data[...] = x
    assert (in_python.forward()["guess"] == guess).all()


@pytest.mark.parametrize(
    "net, model, output, message",
    [
        ('layer { name: "a" type: "NoSuchLayer" }', "", "y", "Unknown layer type: NoSuchLayer"),
        ('layer {\n typo: "ReLU" }', "", "y", 'line 2, column 6: .*has no field named "typo"'),
        (SCALE, "", "z", "no blob 'z'"),
        (SCALE, "nowhere.caffemodel", "y", "nowhere.caffemodel"),
        (
            'layer { name: "d" type: "Data" top: "x" data_param { source: "nowhere" backend: LMDB batch_size: 1 } }',
            "",
            "x",
            "layer 'd' reads 'nowhere/data.mdb', which is not there",
        ),
    ],
)
def test_errors_say_what_was_wrong(tasks, net, model, output, message):
    array = np.zeros(2, np.float32)
    with pytest.raises(weft.TaskError, match=message):
        weft.get(tasks.forward.remote(net, model, "x", array, output))
    # The worker goes on.
    assert (weft.get(tasks.forward.remote(SCALE, "", "x", array, "y")) == 0).all()


@pytest.mark.parametrize(
    "solver, message",
    [
        ("solver_mode: GPU", "on CPUs only"),
        ('net: "nowhere"', "there is no file 'nowhere'"),
        ('type: "Nope"', "Nope"),
    ],
)
def test_bad_solvers(tasks, solver, message):
    with pytest.raises(weft.TaskError, match=message):
        weft.get(tasks.Solver.remote().create.remote(solver))
