"""tensorflow.examples.tutorials.mnist.input_data, which TensorFlow 2 no longer has: MNIST from a folder, in batches.

Programs of 2018 import it by that name under `weft run --ray-api=0.6` (weft.compat._tensorflow). Reads the four idx
files of MNIST, packed or not, or one `.npz`. Downloads nothing: `python -m weft.util.mnist FOLDER` writes such files.
"""

from __future__ import annotations

import os
from collections import namedtuple

from weft.util.mnist import CLASSES, FILES, SIDE, read_idx

__all__ = ["DataSet", "Datasets", "read_data_sets"]

Datasets = namedtuple("Datasets", ["train", "validation", "test"])

_NPZ = "mnist.npz"
_HELD_BACK = 5000  # images for validation, of MNIST's 60000


class DataSet:
    """Images and their labels, and batches of them in random order, each image once per epoch."""

    def __init__(self, images, labels, fake_data=False, one_hot=False, dtype="float32", reshape=True, seed=None):
        """images: (count, rows, columns, 1), numbers from 0 to 255; with dtype float32 they become 0.0 to 1.0, with
        uint8 they stay. reshape: to (count, rows * columns)."""
        import numpy

        name = numpy.dtype(getattr(dtype, "as_numpy_dtype", dtype)).name  # tf.float32 too
        if name not in ("float32", "uint8"):
            raise TypeError(f"the dtype of images is uint8 or float32, not {name}")
        if fake_data:
            raise NotImplementedError("fake_data is not in weft's version of input_data; read a folder instead")
        if len(images) != len(labels):
            raise ValueError(f"{len(images)} images have {len(labels)} labels")
        if reshape:
            images = images.reshape(len(images), -1)
        if name == "float32" and images.dtype != numpy.float32:
            images = images.astype(numpy.float32) / numpy.float32(255)
        self._images, self._labels = images, labels
        self._random = numpy.random.RandomState(seed)
        self._order = numpy.arange(len(images))
        self._at = 0
        self._epochs = 0
        self._shuffled = False

    @property
    def images(self):
        return self._images

    @property
    def labels(self):
        return self._labels

    @property
    def num_examples(self) -> int:
        return len(self._images)

    @property
    def epochs_completed(self) -> int:
        return self._epochs

    def next_batch(self, batch_size, fake_data=False, shuffle=True):
        """The next `batch_size` images and labels; at the end of an epoch, the rest and the first of the next."""
        import numpy

        if fake_data:
            raise NotImplementedError("fake_data is not in weft's version of input_data")
        if not 0 < batch_size or not len(self._order):
            raise ValueError(f"there is no batch of {batch_size} of {len(self._order)} images")
        parts, missing = [], int(batch_size)
        while missing:
            if self._at == len(self._order):
                self._epochs += 1
                self._at = 0
                self._shuffled = False
            if self._at == 0 and shuffle and not self._shuffled:
                self._order = self._random.permutation(len(self._order))
                self._shuffled = True
            part = self._order[self._at : self._at + missing]
            parts.append(part)
            self._at += len(part)
            missing -= len(part)
        chosen = parts[0] if len(parts) == 1 else numpy.concatenate(parts)
        return self._images[chosen], self._labels[chosen]


def read_data_sets(
    train_dir,
    fake_data=False,
    one_hot=False,
    dtype="float32",
    reshape=True,
    validation_size=None,
    seed=None,
    source_url=None,
) -> Datasets:
    """The sets `train`, `validation` and `test` from a folder.

    validation_size: how many of the images for training are held back (default: 5000 of MNIST's 60000, and as large a
    part of fewer). seed: of the order of batches. source_url is ignored: nothing is downloaded.
    """
    if fake_data:
        raise NotImplementedError("fake_data is not in weft's version of input_data; read a folder instead")
    images, labels, test_images, test_labels = _read(os.fspath(train_dir))
    if one_hot:
        labels, test_labels = _one_hot(labels), _one_hot(test_labels)
    if validation_size is None:
        validation_size = min(_HELD_BACK, len(images) // 12)
    if not 0 <= validation_size <= len(images):
        raise ValueError(
            f"validation_size must be from 0 to {len(images)}, the images for training, not {validation_size}"
        )
    held = validation_size
    return Datasets(
        *(
            DataSet(some, theirs, dtype=dtype, reshape=reshape, seed=seed)
            for some, theirs in (
                (images[held:], labels[held:]),
                (images[:held], labels[:held]),
                (test_images, test_labels),
            )
        )
    )


def _one_hot(labels):
    import numpy

    return numpy.eye(CLASSES)[labels]


def _read(folder: str) -> list:
    paths = [_find(folder, name) for name in FILES]
    npz = _find_npz(folder)
    if all(paths):
        arrays = [read_idx(path) for path in paths]
    elif npz and not any(paths):
        arrays, paths = _read_npz(npz), [npz] * 4
    else:
        missing = [name for name, path in zip(FILES, paths) if not path]
        raise FileNotFoundError(
            f"MNIST is not in the folder {folder!r} ({os.path.abspath(folder)}): there must be {', '.join(missing)}, "
            f"each plain or as .gz, or instead of all four one {_NPZ} with x_train, y_train, x_test and y_test. "
            f"python -m weft.util.mnist {folder} writes real digits there"
        )
    for (images, labels), (path, its_labels) in zip((arrays[:2], arrays[2:]), (paths[:2], paths[2:])):
        _check(images, labels, path, its_labels)
    return [array.reshape(*array.shape, 1) if array.ndim == 3 else array for array in arrays]


def _check(images, labels, path: str, labels_path: str) -> None:
    if images.ndim != 3 or images.shape[1:] != (SIDE, SIDE):
        size = "x".join(map(str, images.shape[1:]))
        raise ValueError(f"{path}: the images are {size}, those of MNIST are {SIDE}x{SIDE}")
    if labels.ndim != 1 or len(labels) != len(images):
        raise ValueError(f"{path} has {len(images)} images, but {labels_path} has labels for {len(labels)}")
    if len(labels) and labels.max() >= CLASSES:
        raise ValueError(f"{labels_path}: there is a label {labels.max()}; digits are 0 to {CLASSES - 1}")


def _find(folder: str, name: str):
    for suffix in ("", ".gz"):
        for each in (name, name.replace("-idx", ".idx")):  # some archives unpack to the latter
            path = os.path.join(folder, each + suffix)
            if os.path.isfile(path):
                return path
    return None


def _find_npz(folder: str):
    path = os.path.join(folder, _NPZ)
    if os.path.isfile(path):
        return path
    try:
        others = sorted(name for name in os.listdir(folder) if name.endswith(".npz"))
    except OSError:
        return None
    return os.path.join(folder, others[0]) if len(others) == 1 else None


def _read_npz(path: str) -> list:
    import numpy

    names = ("x_train", "y_train", "x_test", "y_test")
    try:
        with numpy.load(path) as file:
            missing = [name for name in names if name not in file]
            if missing:
                raise ValueError(f"it has no {', '.join(missing)}; found are {', '.join(file.files) or 'none'}")
            arrays = [file[name] for name in names]
    except Exception as error:  # of the archive, of its parts, of what they claim to be
        raise ValueError(f"{path} cannot be read as MNIST: {error}") from error
    for name, array in zip(names, arrays):
        if array.dtype.kind not in "ui":
            raise ValueError(f"{path}: {name} is {array.dtype}; it must be whole numbers, 0 to 255")
    return [arrays[0].astype(numpy.uint8), arrays[1], arrays[2].astype(numpy.uint8), arrays[3]]
