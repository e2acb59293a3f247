"""The environment is what scripts/learning-env promises: TensorFlow, weft of this tree, the packages outside it."""

from __future__ import annotations

from pathlib import Path

import weft
from helpers import run_driver

ROOT = Path(__file__).resolve().parents[3]


def test_weft_is_the_one_of_this_tree():
    assert Path(weft.__file__).resolve().is_relative_to(ROOT / ".venv")


def test_tensorflow_computes_in_workers():
    driver = run_driver(
        """
        import weft

        @weft.remote
        def gradient(x):
            import tensorflow as tf

            value = tf.Variable(x)
            with tf.GradientTape() as tape:
                result = value * value
            return float(tape.gradient(result, value))

        weft.init(num_cpus=2)
        print(weft.get([gradient.remote(x) for x in (1.5, 2.0)]))
        """,
        seconds=300,  # two processes import TensorFlow
    )
    assert driver.stdout.splitlines()[-1] == "[3.0, 4.0]"
