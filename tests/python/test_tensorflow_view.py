"""`import tensorflow` under `weft run --ray-api=0.6`, on a stub; tests/learning/tensorflow has the real one."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import textwrap
from pathlib import Path

import pytest

WEFT = str(Path(sysconfig.get_path("scripts")) / "weft")

# As TensorFlow 2 is built: it imports its own modules by its name, and compat.v1 is a package below.
STUB = {
    "__init__.py": """
        __version__ = "2.99.0"
        import tensorflow
        assert tensorflow.__version__ == "2.99.0"
        from tensorflow import python
        only_in_two = 2
        graphs = []
    """,
    "python/__init__.py": "",
    "compat/__init__.py": "",
    "compat/v1/__init__.py": """
        import tensorflow
        def disable_v2_behavior():
            tensorflow.graphs.append("on")
        def placeholder():
            return "placeholder"
    """,
}


def stub(folder: Path, files=STUB) -> Path:
    for name, text in files.items():
        path = folder / "site" / "tensorflow" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    return folder


def run(folder: Path, source: str, *arguments: str, code=0) -> str:
    """What the program prints. The stub hides a TensorFlow that may be installed."""
    program = folder / "program.py"
    program.write_text(textwrap.dedent(source))
    result = subprocess.run(
        [WEFT, "run", *(arguments or ["--ray-api=0.6"]), program.name],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": "site"},
    )
    assert result.returncode == code, result.stdout + result.stderr
    return result.stdout if code == 0 else result.stderr


def test_driver_and_workers_have_the_view(tmp_path):
    printed = run(
        stub(tmp_path),
        """
        import tensorflow as tf
        import ray, types

        ray.init(num_cpus=1)

        def look():
            import tensorflow
            assert tensorflow is tf and type(tf) is types.ModuleType and tf.__name__ == "tensorflow"
            import tensorflow.compat.v1 as one, tensorflow.python
            assert one.placeholder is tf.placeholder
            assert tf.python is tensorflow.python
            assert not hasattr(tf, "only_in_two")
            return tf.placeholder(), one.tensorflow.graphs, tf.__version__

        print(look())
        print(ray.get(ray.remote(look).remote()))
        """,
    )
    assert printed.splitlines() == ["('placeholder', ['on'], '2.99.0')"] * 2


def test_it_is_not_imported_before_the_program_does(tmp_path):
    source = """
    import ray, sys
    ray.init(num_cpus=1)
    @ray.remote
    def loaded():
        return "tensorflow" in sys.modules
    print(loaded.__module__, "tensorflow" in sys.modules, ray.get(loaded.remote()))
    """
    assert run(stub(tmp_path), source).split() == ["__main__", "False", "False"]


@pytest.mark.parametrize("arguments", [["--ray-api=2"], ["--ray-api=0.6", "-m", "nested"]])
def test_without_the_switch_tensorflow_is_as_it_is(tmp_path, arguments):
    if "-m" in arguments:  # a program of 2018 that starts one of today
        (tmp_path / "nested.py").write_text(
            f"import subprocess; subprocess.run([{WEFT!r}, 'run', '--ray-api=2', 'program.py'], check=True)"
        )
    printed = run(stub(tmp_path), "import tensorflow as tf; print(tf.only_in_two, tf.graphs)", *arguments)
    assert printed.split() == ["2", "[]"]


def test_a_tensorflow_1_is_left_alone(tmp_path):
    old = {"__init__.py": "__version__ = '1.12.0'\nplaceholder = 1", "examples/__init__.py": "own = 1"}
    source = """
    import tensorflow as tf, tensorflow.examples
    print(tf.placeholder, tf.__version__, tensorflow.examples.own, tf.__spec__.origin)
    """
    assert run(stub(tmp_path, old), source).split()[:3] == ["1", "1.12.0", "1"]


def test_a_tensorflow_without_compat_v1(tmp_path):
    error = run(stub(tmp_path, {"__init__.py": "__version__ = '9.0'"}), "import tensorflow", code=1)
    assert error.rstrip().splitlines()[-1].startswith("ImportError: this TensorFlow (9.0, ")
    assert "has no tensorflow.compat.v1" in error and "pip install" in error and "leave out --ray-api=0.6" in error


def test_a_tensorflow_that_is_broken_raises_its_own_error(tmp_path):
    error = run(stub(tmp_path, {"__init__.py": "import no_such_library"}), "import tensorflow", code=1)
    assert "No module named 'no_such_library'" in error.rstrip().splitlines()[-1]


def test_no_tensorflow(tmp_path):
    source = """
    try:
        import tensorflow
    except ModuleNotFoundError as error:
        print(error.name, error)
    """
    if subprocess.run([sys.executable, "-c", "import tensorflow"], capture_output=True).returncode == 0:
        pytest.skip("TensorFlow is installed here")
    printed = run(tmp_path, source)
    assert (
        printed.startswith("tensorflow No module named 'tensorflow'") and "pip install tensorflow tf_keras" in printed
    )


def test_what_is_missing_says_why(tmp_path):
    printed = run(
        stub(tmp_path),
        """
        import tensorflow as tf
        for name in ("contrib", "layers", "only_in_two", "nonsense"):
            try:
                getattr(tf, name)
            except AttributeError as error:
                print(error)
        try:
            import tensorflow.contrib.slim
        except ModuleNotFoundError as error:
            print(error)
        """,
    )
    contrib, layers, two, nonsense, module = printed.splitlines()
    assert "no attribute 'contrib'" in contrib and "TensorFlow 2 has no tensorflow.contrib" in contrib
    assert layers.endswith("pip install tf_keras")
    assert two.endswith("import tensorflow.compat.v2 as tf2; tf2.only_in_two")
    assert nonsense.endswith("in the view of TensorFlow 1 that weft run --ray-api=0.6 gives")
    assert module.startswith("No module named 'tensorflow.contrib': TensorFlow 2 has no")


def test_mnist_is_there_and_its_classes_travel(tmp_path):
    printed = run(
        stub(tmp_path),
        """
        from tensorflow.examples.tutorials.mnist import input_data
        import tensorflow.examples.tutorials.mnist.input_data as again
        import numpy, ray
        assert again is input_data
        ray.init(num_cpus=1)
        data = input_data.DataSet(numpy.zeros((4, 28, 28, 1), "uint8"), numpy.arange(4))
        print(ray.get(ray.remote(lambda d: d.next_batch(3)[0].shape).remote(data)))
        try:
            input_data.read_data_sets("./nothing/")
        except FileNotFoundError as error:
            print(error)
        """,
    )
    shape, error = printed.splitlines()
    assert shape == "(3, 784)" and "python -m weft.util.mnist ./nothing/" in error


def test_tensorflow_variables_without_tensorflow():
    from weft.compat import ray

    if "tensorflow" in sys.modules:
        pytest.skip("TensorFlow is installed here")
    assert ray.experimental.TensorFlowVariables is ray.experimental.tf_utils.TensorFlowVariables
    with pytest.raises(ImportError, match="needs TensorFlow.*pip install tensorflow"):
        ray.experimental.TensorFlowVariables(None)
