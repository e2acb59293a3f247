"""The public names, their cost and their stub."""

from __future__ import annotations

import ast
import pathlib
import pickle
import subprocess
import sys

import pytest
import weft
from weft import _core, exceptions

PACKAGE = pathlib.Path(weft.__file__).parent


def test_all_names_exist():
    assert sorted(set(weft.__all__)) == sorted(weft.__all__)
    for name in weft.__all__:
        assert hasattr(weft, name), name


def test_all_exceptions_are_exported():
    for name in exceptions.__all__:
        assert getattr(weft, name) is getattr(exceptions, name)


def test_version_is_that_of_the_repository():
    version = pathlib.Path(__file__).parents[2] / "VERSION"
    if not version.exists():
        pytest.skip("not in the repository")
    assert weft.__version__ == version.read_text().strip()


def test_import_is_light():
    heavy = [
        "numpy",
        "asyncio",
        "concurrent.futures",
        "inspect",
        "typing",
        "cloudpickle",
        "logging",
        "threading",
        "subprocess",
        "multiprocessing",
        "pickle",
    ]
    source = f"""
import sys
before = set(sys.modules)
import weft
print([name for name in {heavy!r} if name in sys.modules and name not in before])
"""
    printed = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "[]"


def test_stub_and_extension_agree():
    tree = ast.parse((PACKAGE / "_core.pyi").read_text())
    in_stub = {node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    assert all(hasattr(_core, name) for name in in_stub)
    in_stub = {name for name in in_stub if not name.startswith("_")}
    in_extension = {name for name in dir(_core) if not name.startswith("_")}
    assert in_stub == in_extension
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            for member in node.body:
                # A type of C has no __getattr__: it answers for any name in its own way.
                if isinstance(member, ast.FunctionDef) and member.name != "__getattr__":
                    assert hasattr(getattr(_core, node.name), member.name), f"{node.name}.{member.name}"


def test_exception_tree():
    for name in exceptions.__all__:
        assert issubclass(getattr(exceptions, name), weft.WeftError)
    assert issubclass(weft.GetTimeoutError, TimeoutError)
    assert issubclass(weft.OwnerDiedError, weft.ObjectLostError)
    assert issubclass(weft.ActorDiedError, weft.ActorError)


@pytest.mark.parametrize("name", exceptions.__all__)
def test_exceptions_can_be_pickled(name):
    error = getattr(exceptions, name)("what happened", 7)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert again.args == error.args


def test_py_typed_is_installed():
    assert (PACKAGE / "py.typed").exists()
