"""`weft run`: the program runs as under plain python, and `import ray` gives weft in all its processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import sysconfig
import textwrap
from pathlib import Path

import pytest
from helpers import Driver, run_driver

WEFT = str(Path(sysconfig.get_path("scripts")) / "weft")


def weft_run(*arguments, **options):
    return run_driver("", command=[WEFT, "run", *map(str, arguments)], **options)


def write(path: Path, source: str) -> Path:
    path.write_text(textwrap.dedent(source).lstrip())
    return path


def plain_python(*arguments, **options):
    return subprocess.run([sys.executable, *map(str, arguments)], capture_output=True, text=True, timeout=60, **options)


def test_the_first_worker_has_cloudpickle_before_its_first_task(tmp_path):
    """Else a program's first tasks, which it may measure, would wait for the import."""
    script = write(
        tmp_path / "program.py",
        """
        import ray

        @ray.remote
        def first():
            import sys
            return "cloudpickle" in sys.modules

        ray.init(num_cpus=1)
        print(ray.get(first.remote()))
        """,
    )
    assert weft_run(script).stdout == "True\n"


def test_import_ray_gives_weft_in_driver_and_workers(tmp_path):
    script = write(
        tmp_path / "program.py",
        """
        import ray, sys, weft
        from ray.exceptions import RayTaskError
        import ray.util, ray.actor
        assert ray.util is sys.modules["ray.util"] is sys.modules["weft.compat.ray.util"]
        assert RayTaskError is weft.TaskError

        @ray.remote
        def inside():
            import ray, ray.exceptions
            from ray.exceptions import GetTimeoutError
            return ray.__name__, ray.exceptions.__name__, GetTimeoutError.__name__

        ray.init(num_cpus=2)
        print(*ray.get(inside.remote()))
        """,
    )
    assert weft_run(script).stdout.split() == ["weft.compat.ray", "weft.compat.ray.exceptions", "GetTimeoutError"]


LAZY = """
        import importlib.util, sys

        def lazy(name):  # the recipe of Python's documentation
            if name in sys.modules:
                return sys.modules[name]
            spec = importlib.util.find_spec(name)
            loader = importlib.util.LazyLoader(spec.loader)
            spec.loader = loader
            module = importlib.util.module_from_spec(spec)
            sys.modules[name] = module
            loader.exec_module(module)
            return module

        def lazy_by_hand(name):  # as Prefect and lazy_loader have it
            if name in sys.modules:
                return sys.modules[name]
            spec = importlib.util.find_spec(name)
            module = importlib.util.module_from_spec(spec)
            sys.modules[name] = module
            importlib.util.LazyLoader(spec.loader).exec_module(module)
            return module
"""


@pytest.mark.parametrize("before", ["", "import weft.compat.ray", "import ray", "from ray.util import queue"])
@pytest.mark.parametrize("how", ["lazy", "lazy_by_hand"])
def test_lazy_importers(tmp_path, how, before):
    script = write(
        tmp_path / "program.py",
        LAZY
        + f"""
        {before}
        lazily = {how}("ray")
        import weft.exceptions
        assert lazily.exceptions.RayTaskError is weft.TaskError
        import ray, ray.util.queue
        from ray.actor import ActorHandle
        assert sys.modules["ray"] is ray is lazily
        assert ray.util is sys.modules["weft.compat.ray.util"] and ray.util.queue.Queue is weft.util.Queue

        @ray.remote
        def inside():
            lazily = {how}("ray")
            return lazily.__version__, lazily.get(lazily.put(41)) + 1

        ray.init(num_cpus=1)
        print(*ray.get(inside.remote()), ray.is_initialized())
        try:
            ray.nothing
        except AttributeError as error:
            print(error)
        """,
    )
    version, rest = weft_run(script).stdout.split(" ", 1)
    assert rest.startswith("42 True\nray.nothing is not in weft's version")


def test_a_lazy_import_before_ours(tmp_path):
    script = write(
        tmp_path / "program.py",
        LAZY
        + """
        lazily = lazy("ray")
        import weft.compat.ray
        print(lazily.get(lazily.put(1)), sys.modules["ray"] is lazily)
        """,
    )
    assert weft_run(script).stdout == "1 True\n"


def test_modules_of_util_are_there_after_import_ray(tmp_path):
    script = write(
        tmp_path / "program.py",
        """
        import ray
        print(ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy.__name__)
        try:
            from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
        except ImportError as error:
            print(error)
        print(ray.util.actor_pool.ActorPool is ray.util.ActorPool, ray.util.queue.Empty.__name__)
        print(callable(ray.util.state.list_tasks))
        """,
    )
    name, why, *others = weft_run(script).stdout.splitlines()
    assert (name, others) == ("NodeAffinitySchedulingStrategy", ["True Empty", "True"])
    assert why.startswith("PlacementGroupSchedulingStrategy: placement groups are not yet available")


def test_arguments_and_main_are_those_of_plain_python(tmp_path):
    script = write(
        tmp_path / "program.py",
        """
        import sys, os
        print(sys.argv, __name__, __file__, sys.path[0], sorted(set(globals())))
        print(sys.modules["__main__"].__dict__ is globals(), __spec__, [m for m in sys.modules if m.startswith("weft")])
        """,
    )
    arguments = [script, "--ray-api=0.5", "-m", "x y", ""]
    assert weft_run(*arguments, cwd=tmp_path).stdout == plain_python(*arguments, cwd=tmp_path).stdout


def test_module(tmp_path):
    package = tmp_path / "package"
    package.mkdir()
    write(package / "__init__.py", "")
    write(
        package / "__main__.py",
        """
        import sys, ray
        from . import functions
        print(__name__, sys.argv[1:], ray.get(functions.double.remote(21)))
        """,
    )
    write(
        package / "functions.py",
        """
        import ray

        @ray.remote
        def double(x):
            return 2 * x
        """,
    )
    assert weft_run("-m", "package", "a", "-b", cwd=tmp_path).stdout == "__main__ ['a', '-b'] 42\n"


def test_traceback_is_that_of_plain_python(tmp_path):
    script = write(
        tmp_path / "program.py",
        """
        def f():
            raise KeyError("gone")

        f()
        """,
    )
    driver = weft_run(script, code=1)
    assert driver.stderr == plain_python(script).stderr
    assert "weft" not in driver.stderr


@pytest.mark.parametrize("code", [0, 1, 3, 255])
def test_exit_code_is_passed_on(tmp_path, code):
    script = write(tmp_path / "program.py", f"import ray, sys; ray.init(num_cpus=1); sys.exit({code})")
    weft_run(script, code=code)


def test_end_by_signal_is_passed_on(tmp_path):
    script = write(tmp_path / "program.py", "import os, signal; os.kill(os.getpid(), signal.SIGTERM)")
    weft_run(script, code=-signal.SIGTERM)


def test_a_file_that_is_not_there(tmp_path):
    driver = weft_run(tmp_path / "nothing.py", code=2)
    assert "nothing.py" in driver.stderr and "No such file" in driver.stderr


def test_shell(tmp_path):
    driver = Driver("", command=[WEFT, "run", "-i"], stdin=subprocess.PIPE)
    out, err = driver.process.communicate(
        b"import ray\n@ray.remote\ndef f(x): return x + 1\n\nray.get(f.remote(1))\n", 60
    )
    assert driver.process.returncode == 0
    assert out.decode().split() == ["2"], err
    driver.expect_nothing_left()


def test_program_from_standard_input():
    driver = Driver("", command=[WEFT, "run"], stdin=subprocess.PIPE)
    out, err = driver.process.communicate(b"import ray; print(ray.get(ray.put(7)))", 60)
    assert (driver.process.returncode, out) == (0, b"7\n"), err
    driver.expect_nothing_left()


def test_subprocesses_see_it_too(tmp_path):
    script = write(
        tmp_path / "program.py",
        """
        import subprocess, sys
        print(subprocess.check_output([sys.executable, "-c", "import ray.exceptions; print(ray.__name__)"], text=True))
        """,
    )
    assert weft_run(script).stdout.strip() == "weft.compat.ray"


def test_the_program_s_own_path_is_kept(tmp_path):
    write(tmp_path / "mine.py", "value = 5")
    script = write(tmp_path / "elsewhere.py", "import mine, os; print(mine.value, os.environ['PYTHONPATH'])")
    folder = tmp_path / "sub"
    folder.mkdir()
    script = script.rename(folder / "elsewhere.py")
    driver = weft_run(script, env={"PYTHONPATH": f"{tmp_path}:/no/such/folder"})
    value, path = driver.stdout.split()
    assert value == "5"
    assert path.split(os.pathsep)[1:] == [str(tmp_path), "/no/such/folder"]


def test_another_ray_that_is_imported_already_is_refused(tmp_path):
    """As a .pth file or sitecustomize may do it, before anybody can see to that."""
    write(tmp_path / "ray.py", "")
    write(tmp_path / "sitecustomize.py", "import ray")
    script = write(tmp_path / "program.py", "print('ran')")
    driver = weft_run(script, env={"PYTHONPATH": str(tmp_path)}, code=2)
    assert driver.stdout == ""
    assert "another Ray" in driver.stderr and str(tmp_path / "ray.py") in driver.stderr


def test_another_ray_imported_before_ours_is_refused(tmp_path):
    write(tmp_path / "ray.py", "")
    driver = run_driver(
        """
        import ray
        from weft.compat import _finder
        try:
            _finder.install()
        except ImportError as error:
            print(error)
        """,
        env={"PYTHONPATH": str(tmp_path)},
    )
    assert "another Ray" in driver.stdout


def test_versions(tmp_path):
    script = write(tmp_path / "program.py", "import ray; print(ray.__version__[:3])")
    assert weft_run(script).stdout == "2.6\n"
    assert weft_run("--ray-api=0.6", script).stdout == "0.6\n"
    assert weft_run("--ray-api", "0.6", script).stdout == "0.6\n"
    assert weft_run(script, env={"WEFT_RAY_API": "0.6"}).stdout == "0.6\n"
    assert weft_run("--ray-api=2", script, env={"WEFT_RAY_API": "0.6"}).stdout == "2.6\n"


@pytest.mark.parametrize(
    "arguments, word",
    [(["--ray-api=7"], "'7'"), (["--ray-api"], "version"), (["--ray-apy=2"], "--ray-apy"), (["--ray-api="], "''")],
)
def test_wrong_options_are_refused(arguments, word):
    driver = weft_run(*arguments, code=2)
    assert word in driver.stderr and driver.stderr.startswith("weft run: ")


@pytest.mark.parametrize("option", ["--help", "-h"])
def test_help(option):
    assert "--ray-api" in weft_run(option).stdout


def test_a_wrong_version_in_the_environment_is_refused_at_import():
    driver = run_driver("import weft.compat.ray", env={"WEFT_RAY_API": "x"}, code=1)
    assert "'x'" in driver.stderr.splitlines()[-1]


@pytest.mark.parametrize("module", ["tune", "rllib.agents", "no_such_thing", "experimental.no_such_thing"])
def test_modules_that_are_not_there_say_so(tmp_path, module):
    script = write(tmp_path / "program.py", f"import ray.{module}")
    driver = weft_run(script, code=1)
    last = driver.stderr.splitlines()[-1]
    assert last.startswith("ModuleNotFoundError: ") and "weft" in last and f"'ray.{module.split('.')[0]}" in last


def test_init_waits_for_workers_that_have_numpy(tmp_path):
    script = write(
        tmp_path / "program.py",
        """
        import os, sys
        import numpy, ray
        from weft import state

        ray.init(num_cpus=3)
        ready = [row for row in state.list_workers() if row["type"] == "worker" and row["state"] == "IDLE"]
        assert len(ready) == 3, ready

        @ray.remote
        def look():
            import os, sys
            return "numpy" in sys.modules, os.environ["OMP_NUM_THREADS"]

        assert ray.get(look.remote()) == (True, "1")
        assert "OMP_NUM_THREADS" not in os.environ

        # The zygote, from which they were forked, has one thread.
        (zygote,) = {open(f"/proc/{row['pid']}/stat").read().split()[3] for row in ready}
        assert len(os.listdir(f"/proc/{zygote}/task")) == 1
        """,
    )
    weft_run(script, env={"OMP_NUM_THREADS": None, "OPENBLAS_NUM_THREADS": None, "MKL_NUM_THREADS": None})
