"""Caffe2 in C++ tasks and actors: examples/caffe2, compiled against PyTorch's wheel and the weft of this tree.

scripts/caffe2 fetches what is needed. Nothing here needs Python 3.9 or Caffe2's Python package, so it runs in an
environment of its own with the Python of .venv.
"""

from __future__ import annotations

import os
import re
import subprocess
import sysconfig
from pathlib import Path

import numpy as np
import pytest
import weft
from helpers import run_driver

ROOT = Path(__file__).resolve().parents[3]
WEFT = str(Path(sysconfig.get_path("scripts")) / "weft")

SCALE = """
name: "scale"
op { type: "Scale" input: "x" output: "y" arg { name: "scale" f: 2 } }
"""


def run(*command) -> str:
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, f"{command}:\n{result.stdout}\n{result.stderr}"
    return result.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    if os.uname().machine != "x86_64":
        pytest.skip("PyPI has Caffe2 for x86-64 only")
    folder = tmp_path_factory.mktemp("caffe2")
    caffe2 = run(ROOT / "scripts" / "caffe2").strip()
    weft_folder = run(WEFT, "--cmake-dir").strip()
    source = ROOT / "examples" / "caffe2"
    run("cmake", "-S", source, "-B", folder, "-G", "Ninja", f"-Dweft_DIR={weft_folder}", f"-DCAFFE2={caffe2}")
    run("cmake", "--build", folder)
    return folder


def test_program(built):
    driver = run_driver("", command=[str(built / "train")])
    assert driver.stdout.splitlines() == [
        "0 0 0 1 2 3 in 2 rows of 3",
        "an unknown operator was refused",
        "y = 0.100 x + 0.300",
        "ok: Caffe2 in tasks and actors",
    ]


def test_abi_is_hidden(built):
    """A new std::string in the shim would be read as an old one. What it exports is C."""
    lines = run("nm", "--dynamic", "--defined-only", built / "libcaffe2_shim.so").splitlines()
    exported = {line.split()[-1] for line in lines}
    assert {"c2_feed", "c2_fetch", "c2_run_net"} <= exported
    undefined = run("nm", "--dynamic", "--undefined-only", built / "libcaffe2_shim.so")
    assert "__cxx11" not in undefined


def test_net_as_bytes(built):
    """By the C interface itself: Scale with the factor 2, as protobuf's bytes, and bytes that are none."""
    driver = run_driver(
        f"""
        import ctypes

        shim = ctypes.CDLL({str(built / "libcaffe2_shim.so")!r})
        shim.c2_new_workspace.restype = ctypes.c_void_p
        shim.c2_error.restype = ctypes.c_char_p

        class Tensor(ctypes.Structure):
            _fields_ = [("type", ctypes.c_int), ("data", ctypes.c_void_p),
                        ("lengths", ctypes.POINTER(ctypes.c_int64)), ("dimensions", ctypes.c_size_t)]

        workspace = ctypes.c_void_p(shim.c2_new_workspace())
        values, lengths = (ctypes.c_float * 2)(3, 4), (ctypes.c_int64 * 1)(2)
        fed = Tensor(1, ctypes.cast(values, ctypes.c_void_p), lengths, 1)
        assert shim.c2_feed(workspace, b"x", ctypes.byref(fed)) == 0
        scale = b"\\x0a\\x05scale\\x15" + bytes([0, 0, 0, 64])  # an Argument: name, f
        operator = b"\\x0a\\x01x\\x12\\x01y\\x22\\x05Scale\\x2a" + bytes([len(scale)]) + scale
        net = b"\\x12" + bytes([len(operator)]) + operator
        assert shim.c2_run_net_once(workspace, net, ctypes.c_size_t(len(net)), 1) == 0, shim.c2_error()
        fetched = Tensor()
        assert shim.c2_fetch(workspace, b"y", ctypes.byref(fetched)) == 0
        print(fetched.type, fetched.lengths[0], *ctypes.cast(fetched.data, ctypes.POINTER(ctypes.c_float))[:2])
        assert shim.c2_run_net_once(workspace, net, ctypes.c_size_t(len(net) - 1), 1) == -1
        print(shim.c2_error().decode())
        """
    )
    assert driver.stdout.splitlines() == ["1 2 6.0 8.0", "the net is not a caffe2.NetDef in protobuf's binary form"]


@pytest.fixture
def tasks(built, session):
    return weft.cpp.library(str(built / "libcaffe2_tasks.so"))


def test_snippets_of_the_document(tasks):
    text = (ROOT / "docs" / "user" / "learning.md").read_text()
    (section,) = re.findall(r"^## Caffe2\n.*?(?=^## |\Z)", text, re.M | re.S)
    (function,) = re.findall(r"^```c\+\+\n(.*?)^```$", section, re.M | re.S)
    assert function in (ROOT / "examples" / "caffe2" / "train.cc").read_text()
    (net,) = re.findall(r"run_net_once\.remote\('(.*?)'", section)
    array = np.ones(3, np.float32)
    assert (weft.get(tasks.run_net_once.remote(net, "x", array, "y")) == 2).all()


@pytest.mark.parametrize("shape", [(6,), (2, 3), (1, 2, 3), (2, 1, 3, 1)])
def test_net_in_a_task(tasks, shape):
    array = np.arange(6, dtype=np.float32).reshape(shape)
    doubled = weft.get(tasks.run_net_once.remote(SCALE, "x", weft.put(array), "y"))
    assert doubled.shape == shape and doubled.dtype == np.float32
    assert (doubled == 2 * array).all()


def test_net_in_an_actor(tasks):
    workspace = tasks.Workspace.remote()
    array = np.ones((4, 5), np.float32)
    net = 'name: "grow" op { type: "Scale" input: "x" output: "x" arg { name: "scale" f: 2 } }'
    with pytest.raises(weft.TaskError, match="non-existing input blob: x"):
        weft.get(workspace.create_net.remote(net))  # Caffe2 wants the inputs of a net to be there
    weft.get([workspace.feed.remote("x", array), workspace.create_net.remote(net)])
    weft.get([workspace.run_net.remote("grow") for _ in range(3)])
    assert (weft.get(workspace.fetch.remote("x")) == 8).all()
    assert (array == 1).all()


@pytest.mark.parametrize(
    "net, output, message",
    [
        ('op { type: "NoSuchOperator" output: "y" }', "y", "NoSuchOperator"),
        ('opp { type: "Relu" }', "y", "text form"),
        (SCALE, "z", "no blob 'z'"),
        ('op { type: "Cast" input: "x" output: "y" arg { name: "to" i: 5 } }', "y", "blob 'y' has elements of type"),
        ('op { type: "CreateMutex" output: "y" }', "y", "blob 'y' is no tensor"),
        ('op { type: "Cast" input: "x" output: "y" arg { name: "to" i: 10 } }', "y", "another type"),
        ('op { type: "Scale" input: "nothing" output: "y" }', "y", "nothing"),
    ],
)
def test_errors_say_what_was_wrong(tasks, net, output, message):
    array = np.zeros(2, np.float32)
    with pytest.raises(weft.TaskError, match=message):
        weft.get(tasks.run_net_once.remote(net, "x", array, output))
    # The worker goes on.
    assert (weft.get(tasks.run_net_once.remote(SCALE, "x", array, "y")) == 0).all()


def test_unknown_net_is_named(tasks):
    with pytest.raises(weft.TaskError, match="no net 'nowhere'"):
        weft.get(tasks.Workspace.remote().run_net.remote("nowhere"))
