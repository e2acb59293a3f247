"""Functions from everywhere reach the workers: main programs, modules, notebooks, closures."""

from __future__ import annotations

import linecache
import os
import subprocess
import sys
import textwrap
import threading
import warnings

import pytest
import weft
from helpers import run_driver
from weft import _functions

pytestmark = pytest.mark.usefixtures("session")


def test_closures():
    offset = 5
    table = {"a": [1, 2]}

    @weft.remote
    def use(x):
        return x + offset, table

    assert weft.get(use.remote(1)) == (6, {"a": [1, 2]})


def test_functions_that_call_each_other():
    def even(n):
        return True if n == 0 else odd(n - 1)

    def odd(n):
        return False if n == 0 else even(n - 1)

    assert weft.get(weft.remote(even).remote(10)) is True


def test_remote_functions_in_closures_and_as_values():
    @weft.remote
    def inner(x):
        return x + 1

    @weft.remote
    def outer(f, x):
        return weft.get(f.remote(x)) + weft.get(inner.options(num_cpus=0.5).remote(x))

    assert weft.get(outer.remote(inner, 1)) == 4


def test_defined_in_a_loop_is_exported_once():
    keys = set()
    for _ in range(20):

        def body(x, y=2):
            return sum(z * y for z in x)

        keys.add(_functions.export(body)[0])
    assert len(keys) == 1
    assert len(next(iter(keys))) == 16


def test_different_closures_are_different_functions():
    def make(n):
        return weft.remote(lambda: n)

    functions = [make(i) for i in range(10)]
    assert weft.get([f.remote() for f in functions]) == list(range(10))


def test_a_function_defined_again_is_the_new_one():
    def make(version):
        namespace = {}
        exec(f"def f():\n    return {version}", namespace)
        return weft.remote(namespace["f"])

    assert weft.get(make(1).remote()) == 1
    assert weft.get(make(2).remote()) == 2


def test_what_cannot_be_pickled_is_named():
    lock = threading.Lock()

    @weft.remote
    def use():
        with lock:
            return 1

    with pytest.raises(TypeError) as caught:
        use.remote()
    assert "use" in str(caught.value)
    assert "closure variable 'lock'" in str(caught.value)


def test_a_class_that_cannot_be_pickled_is_named():
    lock = threading.Lock()

    class Guarded:
        def use(self):
            with lock:
                return 1

    class Holder:
        guard = lock

    for cls, place in ((Guarded, "Guarded.use (closure variable 'lock')"), (Holder, "Holder.guard")):
        with pytest.raises(TypeError) as caught:
            weft.remote(cls).remote()
        assert f"{cls.__name__}' cannot be sent" in str(caught.value), caught.value
        assert place in str(caught.value), caught.value


def test_a_result_that_cannot_be_pickled_is_said_to_be_one():
    @weft.remote
    def make():
        return {"lock": threading.Lock()}

    with pytest.raises(TypeError) as caught:
        weft.get(make.remote())
    said = str(caught.value)
    assert "the result of task '" in said and "make', of type 'dict'" in said, said
    assert "['lock']" in said and "return what is needed" in said and "inside the task" not in said, said


def test_large_closures_warn():
    ballast = b"x" * 3_000_000

    @weft.remote
    def use():
        return len(ballast)

    with pytest.warns(UserWarning, match=r"closure variable 'ballast'.*weft\.put") as caught:
        assert weft.get(use.remote()) == 3_000_000
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert weft.get([use.remote() for _ in range(5)]) == [3_000_000] * 5  # exported already


def write_module(directory, name, source):
    directory.mkdir(exist_ok=True)
    (directory / f"{name}.py").write_text(textwrap.dedent(source))


def test_module_beside_the_script(tmp_path):
    write_module(
        tmp_path,
        "beside",
        """
        import threading
        import weft
        lock = threading.Lock()      # cannot be pickled: the worker must import the module
        class Error(Exception): pass
        def helper(x): return x * 2
        @weft.remote
        def double(x): return helper(x)
        @weft.remote
        def locked(x):
            with lock: return helper(x)
        @weft.remote
        def fail(): raise Error("from beside")
        """,
    )
    write_module(
        tmp_path,
        "script",
        """
        import weft, beside
        weft.init(num_cpus=1)
        print(weft.get(beside.double.remote(4)), weft.get(beside.locked.remote(5)))
        try:
            weft.get(beside.fail.remote())
        except beside.Error as error:
            print("caught", error)
        print(weft.get(weft.remote(lambda: beside.helper(6)).remote()))
        """,
    )
    driver = run_driver("", command=[sys.executable, str(tmp_path / "script.py")], cwd="/")
    assert driver.stdout.split("\n") == ["8 10", "caught from beside", "12", ""]


def test_path_changed_after_init(tmp_path):
    write_module(tmp_path / "late", "late_module", "def f(x): return x + 1")
    driver = run_driver(
        """
        import sys, weft
        weft.init(num_cpus=1)
        sys.path.append(sys.argv[1])
        import late_module
        print(weft.get(weft.remote(late_module.f).remote(1)))
        print(weft.get(weft.remote(lambda: late_module.f(2)).remote()))
        """,
        arguments=[str(tmp_path / "late")],
    )
    assert driver.stdout == "2\n3\n"


def test_module_that_cannot_be_imported_elsewhere(tmp_path):
    write_module(tmp_path, "hidden", "def f(x): return g(x)\ndef g(x): return x + 1")
    driver = run_driver(
        """
        import importlib.util, sys, weft
        spec = importlib.util.spec_from_file_location("hidden", sys.argv[1])
        hidden = importlib.util.module_from_spec(spec)
        sys.modules["hidden"] = hidden
        spec.loader.exec_module(hidden)
        print(weft.get(weft.remote(hidden.f).remote(1)))
        """,
        arguments=[str(tmp_path / "hidden.py")],
    )
    assert driver.stdout == "2\n"


def test_classes_of_the_main_program(tmp_path):
    write_module(
        tmp_path,
        "script",
        """
        import dataclasses, enum, weft
        @dataclasses.dataclass
        class Point:
            x: int
        class Colour(enum.Enum):
            RED = 1
        class Error(Exception):
            def __init__(self, a, b):
                super().__init__(a); self.b = b
        @weft.remote
        def work(point, colour):
            if colour is not Colour.RED: raise Error(1, 2)
            return Point(point.x + 1)
        @weft.remote
        def fail(): raise Error("one", "two")
        @weft.remote
        def countdown(n): return n if n == 0 else weft.get(countdown.remote(n - 1))
        if __name__ == "__main__":
            result = weft.get(work.remote(Point(1), Colour.RED))
            print(type(result) is Point, result)
            try: weft.get(fail.remote())
            except Error as error: print(error.args, error.b)
            print(weft.get(countdown.remote(3)), weft.get(weft.put(Colour.RED)) is Colour.RED)
        """,
    )
    driver = run_driver("", command=[sys.executable, str(tmp_path / "script.py")])
    assert driver.stdout.split("\n") == ["True Point(x=2)", "('one',) two", "0 True", ""]


def test_script_that_is_imported_does_not_run_again_in_workers(tmp_path):
    write_module(
        tmp_path,
        "unguarded",
        """
        import threading, weft
        print("importing")
        weft.init(num_cpus=1)
        @weft.remote
        def f(x): return x + 1
        print(weft.get(f.remote(1)))
        """,
    )
    driver = run_driver("import unguarded", cwd=str(tmp_path))
    assert driver.stdout == "importing\n2\n"


def test_standard_input_program():
    driver = run_driver("", command=[sys.executable, "-"], stdin=subprocess.DEVNULL)
    assert driver.stdout == ""


def test_source_of_notebook_cells_is_in_tracebacks():
    source = "def cell():\n    raise ValueError('in a cell')\n"
    filename = "<ipython-input-1-test>"
    linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
    namespace = {}
    exec(compile(source, filename, "exec"), namespace)
    with pytest.raises(ValueError, match="in a cell") as caught:
        weft.get(weft.remote(namespace["cell"]).remote())
    assert "raise ValueError('in a cell')" in caught.value.remote_traceback


def test_workers_see_the_drivers_surroundings():
    @weft.remote
    def look():
        return sys.path, os.getcwd(), sys.argv, sys.executable, os.environ.get("PATH")

    path, cwd, argv, executable, environment = weft.get(look.remote())
    # What was on the path when the session began, in its order; other tests may have added to it since.
    mine = list(dict.fromkeys(os.path.abspath(entry) for entry in sys.path))
    assert os.path.dirname(os.path.abspath(__file__)) in path
    assert [entry for entry in mine if entry in path] == [entry for entry in path if entry in mine]
    assert cwd == os.getcwd()
    assert argv == sys.argv
    assert executable == sys.executable
    assert environment == os.environ["PATH"]


def test_workers_draw_different_random_numbers(tmp_path):
    driver = run_driver(
        """
        import os, random, time, weft
        weft.init(num_cpus=3)
        @weft.remote
        def draw():
            time.sleep(0.2)
            return os.getpid(), random.random(), os.urandom(4)
        drawn = weft.get([draw.remote() for _ in range(3)])
        print(len({pid for pid, _, _ in drawn}) == len({number for _, number, _ in drawn}))
        """
    )
    assert driver.stdout == "True\n"
