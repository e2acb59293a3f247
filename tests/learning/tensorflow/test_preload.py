"""init(preload=["tensorflow"]): actors find TensorFlow imported, and compute with it after the fork."""

from __future__ import annotations

from helpers import run_driver


def test_actors_compute_with_a_preloaded_tensorflow():
    driver = run_driver(
        """
        import os, sys, weft

        @weft.remote
        class Model:
            def __init__(self):
                self.found = "tensorflow" in sys.modules

            def train(self):
                import tensorflow as tf

                x = tf.random.stateless_uniform([256, 64], [1, 2])
                w = tf.Variable(tf.zeros([64, 1]))

                @tf.function
                def step():
                    with tf.GradientTape() as tape:
                        loss = tf.reduce_mean((x @ w - tf.reduce_sum(x, 1, keepdims=True)) ** 2)
                    w.assign_sub(0.01 * tape.gradient(loss, w))
                    return loss

                losses = [float(step()) for _ in range(5)]
                return self.found, os.getppid(), losses

        weft.init(num_cpus=2, preload=["tensorflow"])
        rows = weft.get([model.train.remote() for model in [Model.remote() for _ in range(3)]])
        (zygote,) = {row[1] for row in rows}
        assert len(os.listdir(f"/proc/{zygote}/task")) == 1
        for found, _, losses in rows:
            assert found and losses[-1] < losses[0]
        """,
        seconds=180,
    )
    assert "preload" not in driver.stderr
