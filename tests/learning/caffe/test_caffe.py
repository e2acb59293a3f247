"""Caffe itself on weft: nets and solvers in tasks and actors, the manual's program, and what it refuses.

Runs in the environment `caffe`. The manual lies beside the repository, in ../shared/seeds.
"""

from __future__ import annotations

import os
import re
import sys
import sysconfig
from pathlib import Path

import lmdb
import numpy as np
import pytest
import weft
from helpers import run_driver
from weft.compat import caffe
from weft.compat.caffe import NetSpec, _schema
from weft.compat.caffe import layers as L
from weft.compat.caffe import params as P
from weft.compat.caffe.proto import caffe_pb2, text_format

ROOT = Path(__file__).resolve().parents[3]
SEEDS = Path(os.environ.get("WEFT_SEEDS") or ROOT.parent / "shared" / "seeds")
WEFT = str(Path(sysconfig.get_path("scripts")) / "weft")


def parsed(text: str, kind=caffe_pb2.NetParameter):
    return text_format.Parse(text, kind())


# ----- the schema ------------------------------------------------------------


def fields(data: bytes) -> dict:
    """The fields of a protobuf message by number: numbers and bytes."""
    found: dict = {}
    position = 0

    def varint():
        nonlocal position
        result = shift = 0
        while True:
            byte = data[position]
            position += 1
            result |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return result

    while position < len(data):
        key = varint()
        if key & 7 == 0:
            value = varint()
        else:
            assert key & 7 == 2
            size = varint()
            value = data[position : position + size]
            position += size
        found.setdefault(key >> 3, []).append(value)
    return found


def descriptor(library: bytes) -> dict:
    """The FileDescriptorProto of caffe.proto, which protobuf's generated code carries."""
    start = library.index(b"\x0a\x0bcaffe.proto\x12\x05caffe")
    position = start
    while library[position] in (0x0A, 0x12, 0x22, 0x2A):  # name, package, messages, enumerations
        size = shift = 0
        position += 1
        while True:
            byte = library[position]
            position += 1
            size |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        position += size
    return fields(library[start:position])


KINDS = {
    1: "double",
    2: "float",
    3: "int64",
    4: "uint64",
    5: "int32",
    8: "bool",
    9: "string",
    12: "bytes",
    13: "uint32",
}


def described(file: dict) -> list:
    """The descriptor as lines of the schema."""

    def enum(data: bytes) -> str:
        values = [fields(value) for value in fields(data)[2]]
        numbers = " ".join(f"{value[1][0].decode()}={value[2][0]}" for value in values)
        return f"enum {fields(data)[1][0].decode()} {numbers}"

    lines = [enum(data) for data in file[5]]
    for data in file[4]:
        message = fields(data)
        lines.append(f"message {message[1][0].decode()}")
        lines += [enum(inner) for inner in message.get(4, [])]
        for each in message.get(2, []):
            field = fields(each)
            kind = KINDS.get(field[5][0]) or field[6][0].decode().split(".")[-1]
            line = f"{field[3][0]} {field[1][0].decode()} {kind}" + ("*" if field[4][0] == 3 else "")
            if 8 in field and fields(field[8][0]).get(2) == [1]:
                line += " packed"
            if 7 in field:
                default = field[7][0].decode()
                line += f" = {default}" if kind != "string" else f' = "{default}"'
            lines.append(line)
    return lines


def test_schema_is_that_of_the_library(caffe_folder):
    ours = [line.strip() for line in _schema.SCHEMA.strip().replace("\n    ", " ").splitlines()]
    theirs = described(descriptor((caffe_folder / "lib" / "libcaffe.so.1.0.0").read_bytes()))
    assert len(theirs) > 500
    assert ours == theirs


def test_layers_are_those_of_the_library():
    assert set(caffe.layer_type_list()) == _schema.LAYERS


# ----- the manual's program --------------------------------------------------


@pytest.fixture(scope="module")
def manual(tmp_path_factory):
    """A folder with the two nets that the manual's program writes, unchanged, under `weft run`."""
    found = sorted(SEEDS.glob("002_*.txt"))
    if not found:
        pytest.skip(f"the seeds are not there: {SEEDS}")
    (program,) = re.findall(r"^```\n(from __future__.*?)^```$", found[0].read_text(), re.M | re.S)
    folder = tmp_path_factory.mktemp("manual")
    (folder / "program.py").write_text(program)
    run_driver("", command=[WEFT, "run", "--ray-api=0.6", "program.py"], cwd=folder)
    return folder


@pytest.fixture(scope="module")
def pictures(tmp_path_factory, write_lmdb):
    """A database of photographs, 256 by 256 pixels with 3 channels, and the photographs."""
    import cv2
    from sklearn.datasets import load_sample_images

    images = [cv2.resize(image, (256, 256)).transpose(2, 0, 1) for image in load_sample_images().images]
    return write_lmdb(tmp_path_factory.mktemp("pictures") / "lmdb", images, [3, 5]), images


@pytest.mark.parametrize("name, layers, batch", [("train", 24, 256), ("test", 25, 50)])
def test_opencv_reads_the_nets_of_the_manual(manual, name, layers, batch):
    import cv2

    net = cv2.dnn.readNetFromCaffe(str(manual / f"{name}.prototxt"))
    text = parsed((manual / f"{name}.prototxt").read_text())
    assert len(text.layer) == layers and text.layer[0].data_param.batch_size == batch
    theirs = net.getLayerNames()
    for layer in text.layer:
        if layer.type in ("Convolution", "LRN", "Pooling", "InnerProduct", "ReLU"):
            assert any(layer.name in each for each in theirs), (layer.name, theirs)


@pytest.mark.parametrize("name", ["train", "test"])
def test_caffe_makes_the_nets_of_the_manual(session, manual, pictures, name):
    """With a database that is there, and batches of two pictures: the program names one that is not."""

    @weft.remote
    def outputs(path, database):
        net = parsed(Path(path).read_text())
        net.layer[0].data_param.source = database
        net.layer[0].data_param.batch_size = 2
        made = caffe.Net(net, caffe.TEST)
        return {key: np.array(value) for key, value in made.forward(blobs=["Data1", "Data2"]).items()}

    made = weft.get(outputs.remote(str(manual / f"{name}.prototxt"), pictures[0]))
    assert made["Data1"].shape == (2, 3, 227, 227) and made["Data2"].tolist() == [3, 5]
    assert made["SoftmaxWithLoss1"] == pytest.approx(np.log(1000), rel=1e-5)  # all weights are 0
    assert ("Accuracy1" in made) == (name == "test")


# ----- nets ------------------------------------------------------------------


def linear(rows=4):
    n = NetSpec()
    n.x = L.Input(shape={"dim": [rows, 3]})
    n.y = L.InnerProduct(n.x, num_output=2, weight_filler={"type": "gaussian", "std": 1})
    return n.to_proto()


def test_forward_and_backward_agree_with_numpy():
    net_parameter = linear()
    net_parameter.force_backward = True
    net = caffe.Net(net_parameter, caffe.TRAIN)
    assert (net.inputs, net.outputs, list(net.params)) == (["x"], ["y"], ["y"])
    assert (net.bottom_names["y"], net.top_names["y"], net.layers[1].type) == (["x"], ["y"], "InnerProduct")
    weight, bias = net.params["y"]
    bias.data[...] = [1, -1]
    x = np.random.default_rng(1).normal(size=(4, 3)).astype("f")
    y = net.forward(x=x)["y"]
    np.testing.assert_allclose(y, x @ weight.data.T + bias.data, rtol=1e-5)
    gradient = np.ones((4, 2), "f")
    np.testing.assert_allclose(net.backward(y=gradient)["x"], gradient @ weight.data, rtol=1e-5)
    np.testing.assert_allclose(weight.diff, gradient.T @ x, rtol=1e-5)
    np.testing.assert_allclose(bias.diff, [4, 4])
    net.clear_param_diffs()
    assert not weight.diff.any()


def test_arrays_are_views_that_outlive_the_net():
    net = caffe.Net(linear(), caffe.TEST)
    x = net.blobs["x"].data
    x[...] = 5
    assert np.shares_memory(x, net.blobs["x"].data) and (net.blobs["x"].data == 5).all()
    net.blobs["x"].reshape(100, 3)
    net.reshape()
    assert net.blobs["y"].shape == (100, 2) and net.blobs["y"].count == 200
    assert net.forward(x=np.zeros((100, 3), "f"))["y"].shape == (100, 2)
    del net
    assert (x == 5).all()


def test_weights_are_saved_and_loaded(tmp_path):
    net = caffe.Net(linear(), caffe.TEST)
    net.save(tmp_path / "net.caffemodel")
    saved = caffe_pb2.NetParameter.FromString((tmp_path / "net.caffemodel").read_bytes())
    assert [layer.inner_product_param for layer in saved.layer][1] == linear().layer[1].inner_product_param
    assert (caffe.io.blobproto_to_array(saved.layer[1].blobs[0]) == net.params["y"][0].data).all()
    for other in (
        caffe.Net(linear(), caffe.TEST, weights=tmp_path / "net.caffemodel"),
        caffe.Net(linear(), str(tmp_path / "net.caffemodel"), caffe.TEST),
    ):
        assert (other.params["y"][0].data == net.params["y"][0].data).all()
    shared = caffe.Net(linear(), caffe.TEST)
    shared.share_with(net)
    net.params["y"][0].data[0, 0] = 17
    assert shared.params["y"][0].data[0, 0] == 17


def test_net_in_a_task_takes_and_gives_stored_arrays(session):
    @weft.remote
    def doubled(array):
        n = NetSpec()
        n.x = L.Input(shape={"dim": list(array.shape)})
        n.y = L.Power(n.x, scale=2)
        return caffe.Net(n.to_proto(), caffe.TEST).forward(x=array)["y"]

    array = np.arange(60_000, dtype="f").reshape(100, 600)
    assert (weft.get(doubled.remote(weft.put(array))) == 2 * array).all()


def test_data_layer_crops_subtracts_the_mean_and_mirrors(tmp_path, write_lmdb):
    images = np.random.default_rng(2).integers(0, 256, (40, 3, 10, 12), dtype=np.uint8)
    source = write_lmdb(tmp_path / "lmdb", images, range(40))
    n = NetSpec()
    n.data, n.label = L.Data(
        source=source,
        backend=P.Data.LMDB,
        batch_size=40,
        ntop=2,
        transform_param={"crop_size": 6, "mean_value": [104, 117, 123], "mirror": True},
    )
    made = caffe.Net(n.to_proto(), caffe.TEST).forward()
    assert made["label"].tolist() == list(range(40))
    plain = images[:, :, 2:8, 3:9] - np.array([104, 117, 123], "f").reshape(1, 3, 1, 1)  # the middle
    as_is = [np.array_equal(got, want) for got, want in zip(made["data"], plain)]
    mirrored = [np.array_equal(got, want[:, :, ::-1]) for got, want in zip(made["data"], plain)]
    assert all(a != b for a, b in zip(as_is, mirrored))
    assert any(as_is) and any(mirrored)


# ----- solvers ---------------------------------------------------------------

LINE = """
base_lr: 0.1 lr_policy: "fixed" momentum: 0.9 snapshot_prefix: "line" max_iter: 8
train_net_param {
  layer {
    name: "points" type: "Input" top: "x" top: "y"
    input_param { shape { dim: 50 dim: 1 } shape { dim: 50 dim: 1 } }
  }
  layer { name: "line" type: "InnerProduct" bottom: "x" top: "guess" inner_product_param { num_output: 1 } }
  layer { name: "loss" type: "EuclideanLoss" bottom: "guess" bottom: "y" top: "loss" }
}
"""


def line_solver(kind=caffe.SGDSolver):
    solver = kind(parsed(LINE, caffe_pb2.SolverParameter))
    x = np.linspace(-1, 1, 50, dtype="f").reshape(50, 1)
    solver.net.blobs["x"].data[...] = x
    solver.net.blobs["y"].data[...] = 0.1 * x + 0.3
    return solver


def weights(solver) -> list:
    return [float(blob.data.item()) for blob in solver.net.params["line"]]


def test_solver_goes_on_from_a_snapshot(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    whole = line_solver()
    whole.step(8)
    first = line_solver()
    first.step(3)
    first.snapshot()
    assert first.iter == 3 and sorted(os.listdir()) == ["line_iter_3.caffemodel", "line_iter_3.solverstate"]
    second = line_solver()
    second.restore("line_iter_3.solverstate")
    assert second.iter == 3 and weights(second) == weights(first)
    second.step(5)
    third = line_solver()
    third.solve("line_iter_3.solverstate")
    assert third.iter == 8 and weights(second) == weights(third) == weights(whole) != weights(first)


@pytest.mark.parametrize(
    "kind",
    [
        caffe.SGDSolver,
        caffe.NesterovSolver,
        caffe.AdaGradSolver,
        caffe.RMSPropSolver,
        caffe.AdaDeltaSolver,
        caffe.AdamSolver,
    ],
)
def test_solvers_find_the_line(tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)
    text = LINE if kind in (caffe.SGDSolver, caffe.NesterovSolver, caffe.AdamSolver) else LINE.replace("0.9", "0")
    if kind is caffe.AdaDeltaSolver:  # the momentum is its decay, and delta the size of its first steps
        text = LINE.replace("base_lr: 0.1", "base_lr: 1 delta: 1e-4")
    monkeypatch.setattr(sys.modules[__name__], "LINE", text)
    solver = line_solver(kind)
    solver.step(300)
    assert weights(solver) == pytest.approx([0.1, 0.3], abs=0.02)


def test_solver_reads_the_net_from_its_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    solver = parsed(LINE, caffe_pb2.SolverParameter)
    Path("net.prototxt").write_text(str(solver.train_net_param))
    solver.ClearField("train_net_param")
    solver.net = "net.prototxt"
    Path("solver.prototxt").write_text(str(solver))
    assert caffe.get_solver("solver.prototxt").net.outputs == ["loss"]


# ----- LeNet on real digits --------------------------------------------------


def lenet(source, batch):
    n = NetSpec()
    n.data, n.label = L.Data(
        source=source, backend=P.Data.LMDB, batch_size=batch, ntop=2, transform_param={"scale": 1 / 256}
    )
    xavier = {"weight_filler": {"type": "xavier"}}
    n.conv1 = L.Convolution(n.data, kernel_size=5, num_output=20, **xavier)
    n.pool1 = L.Pooling(n.conv1, kernel_size=2, stride=2, pool=P.Pooling.MAX)
    n.conv2 = L.Convolution(n.pool1, kernel_size=5, num_output=50, **xavier)
    n.pool2 = L.Pooling(n.conv2, kernel_size=2, stride=2, pool=P.Pooling.MAX)
    n.ip1 = L.InnerProduct(n.pool2, num_output=500, **xavier)
    n.relu1 = L.ReLU(n.ip1, in_place=True)
    n.ip2 = L.InnerProduct(n.relu1, num_output=10, **xavier)
    n.loss = L.SoftmaxWithLoss(n.ip2, n.label)
    n.accuracy = L.Accuracy(n.ip2, n.label)
    return n.to_proto()


class LeNet:
    """The same class with and without weft: trained with a seed, tested on digits that it has not seen."""

    def __init__(self, train, test):
        solver = caffe_pb2.SolverParameter(
            base_lr=0.01, lr_policy="inv", gamma=1e-4, power=0.75, momentum=0.9, weight_decay=5e-4, random_seed=1
        )
        solver.train_net_param.CopyFrom(lenet(train, 64))
        solver.test_net_param.append(lenet(test, 100))
        solver.test_iter.append(10)
        solver.test_interval = 1000
        solver.test_initialization = False
        self.solver = caffe.SGDSolver(solver)

    def step(self, steps):
        self.solver.step(steps)

    def accuracy(self):
        (net,) = self.solver.test_nets
        net.share_with(self.solver.net)
        return float(np.mean([float(net.forward()["accuracy"]) for _ in range(10)]))

    def weights(self):
        return {name: np.array(blobs[0].data) for name, blobs in self.solver.net.params.items()}


def test_lenet_learns_in_an_actor_what_it_learns_without_weft(session, digits):
    actor = weft.remote(LeNet).remote(*digits)
    assert weft.get(actor.accuracy.remote()) < 0.3
    actor.step.remote(50)
    actor.step.remote(50)
    in_actor, actor_weights = weft.get([actor.accuracy.remote(), actor.weights.remote()])
    plain = LeNet(*digits)
    plain.accuracy()
    plain.step(100)
    assert in_actor == plain.accuracy() > 0.9
    for name, array in plain.weights().items():
        assert (array == actor_weights[name]).all(), name


def test_program_of_the_document(tmp_path):
    text = (ROOT / "docs" / "user" / "learning.md").read_text()
    (section,) = re.findall(r"^## Caffe\n.*?(?=^## |\Z)", text, re.M | re.S)
    (program,) = re.findall(r"^```python caffe\n(.*?)^```$", section, re.M | re.S)
    (tmp_path / "program.py").write_text(program)
    driver = run_driver("", command=[sys.executable, "program.py"], cwd=tmp_path)
    (expected,) = re.findall(r"print\(.*#\s(.*)$", program, re.M)
    assert driver.stdout.splitlines() == [expected]


# ----- bad input -------------------------------------------------------------


def with_layer(**changes):
    net = linear()
    layer = net.layer[1]
    for name, value in changes.items():
        getattr(layer, name)[:] = value
    return net


def data_net(source, **transform):
    n = NetSpec()
    n.data, n.label = L.Data(source=source, backend=P.Data.LMDB, batch_size=4, ntop=2, transform_param=transform)
    return n.to_proto()


@weft.remote
class Survivor:
    def refused(self, make):
        """What making and computing the net says. Afterwards this process is as good as before."""
        try:
            net = make()
            for _ in range(20):
                net.forward()
        except (caffe.CaffeError, OSError, ValueError) as error:
            assert caffe.Net(linear(), caffe.TEST).forward()["y"].shape == (4, 2)
            return str(error)
        return "nothing"


def test_what_caffe_refuses_does_not_end_the_process(session, tmp_path, write_lmdb):
    image = np.zeros((1, 8, 8), np.uint8)
    small = write_lmdb(tmp_path / "small", [image] * 8 + [image[:, :4]] + [image] * 8, [0] * 17)
    good = write_lmdb(tmp_path / "good", [image] * 8, [0] * 8)
    (tmp_path / "garbage").mkdir()
    (tmp_path / "garbage" / "data.mdb").write_bytes(b"x" * 10_000)
    caffe.Net(linear(), caffe.TEST).save(tmp_path / "cut.caffemodel")
    whole = (tmp_path / "cut.caffemodel").read_bytes()
    (tmp_path / "cut.caffemodel").write_bytes(whole[: len(whole) // 2])
    garbage, cut = str(tmp_path / "garbage"), str(tmp_path / "cut.caffemodel")
    wide = linear()
    wide.layer[1].inner_product_param.num_output = 7
    wide.layer[1].inner_product_param.ClearField("weight_filler")
    caffe.Net(wide, caffe.TEST).save(tmp_path / "wide.caffemodel")
    other = str(tmp_path / "wide.caffemodel")
    empty = write_lmdb(tmp_path / "empty", [], [])
    short = str(tmp_path / "short")
    with lmdb.open(short) as database, database.begin(write=True) as transaction:
        transaction.put(b"0", caffe_pb2.Datum(channels=3, height=9, width=9, data=b"x").SerializeToString())
    ungrouped = NetSpec()
    ungrouped.x = L.Input(shape={"dim": [1, 1, 4, 4]})
    ungrouped.y = L.Convolution(ungrouped.x, kernel_size=2, num_output=2, group=0)
    cases = [
        (lambda: caffe.Net(with_layer(bottom=["nothing"]), caffe.TEST), "Unknown bottom blob 'nothing' (layer 'y'"),
        (lambda: caffe.Net(with_layer(bottom=[]), caffe.TEST), "bottom blob"),
        (lambda: caffe.Net(data_net("nowhere"), caffe.TEST), "layer 'data' reads 'nowhere/data.mdb', which is not"),
        (lambda: caffe.Net(data_net(garbage), caffe.TEST), "/garbage', which cannot be opened: "),
        (lambda: caffe.Net(data_net(empty), caffe.TEST), "/empty', which is empty"),
        (lambda: caffe.Net(data_net(short), caffe.TEST), "first record has 1 elements where its shape has 243"),
        (lambda: caffe.Net(ungrouped.to_proto(), caffe.TEST), "layer 'y' has 0 groups"),
        (lambda: caffe.Net(data_net(good, crop_size=9), caffe.TEST), "crop_size (8 vs. 9)"),
        (lambda: caffe.Net(data_net(good, mean_file="nowhere"), caffe.TEST), "reads 'nowhere', which is not there"),
        # Found out by the thread that reads ahead.
        (lambda: caffe.Net(data_net(small), caffe.TEST), "layer 'data' cannot read its data"),
        (lambda: caffe.Net(linear(), cut, caffe.TEST), "is not a caffemodel"),
        (lambda: caffe.Net(linear(), other, caffe.TEST), "(7, 3) there and (2, 3) in the net"),
    ]
    survivor = Survivor.remote()
    for make, message in cases:
        assert message in weft.get(survivor.refused.remote(make))


def test_errors_arrive_as_themselves(session):
    @weft.remote
    def fails():
        caffe.Net(with_layer(bottom=["nothing"]), caffe.TEST)

    with pytest.raises(caffe.CaffeError, match="Unknown bottom blob") as failed:
        weft.get(fails.remote())
    assert isinstance(failed.value, weft.TaskError)


@pytest.mark.parametrize(
    "inputs, message",
    [
        ({"z": np.zeros((4, 3), "f")}, "the net takes x, not z"),
        ({"x": np.zeros((5, 3), "f")}, r"blob 'x' has the shape \(4, 3\), not \(5, 3\); reshape it first"),
        ({"x": 3}, "not None"),
    ],
)
def test_inputs_are_checked(inputs, message):
    with pytest.raises(ValueError, match=message):
        caffe.Net(linear(), caffe.TEST).forward(**inputs)


def test_unknown_layers_are_named_in_calls():
    net = caffe.Net(linear(), caffe.TEST)
    with pytest.raises(KeyError, match="no layer 'conv'"):
        net.forward(end="conv")
    with pytest.raises(caffe.CaffeError, match="layers 1 to"):
        caffe._library.check(caffe._library.library().cf_backward(net._handle, 1, 9))


@pytest.mark.parametrize(
    "change, message",
    [
        ("base_lr: 1", "line 11, column 1: base_lr: stands here for the second time"),
        ("type: 'Nope'", "Unknown solver type: Nope"),
        ("lr_policy: 'step'", "there is no stepsize"),
        ("lr_policy: 'nope'", "Unknown learning rate policy: nope"),
    ],
)
def test_bad_solvers(tmp_path, change, message):
    path = tmp_path / "solver.prototxt"
    path.write_text((LINE.replace('lr_policy: "fixed"', "") if "lr_policy" in change else LINE) + change)
    with pytest.raises((caffe.CaffeError, ValueError), match=message):
        caffe.get_solver(path).step(1)


def test_missing_states_and_folders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    solver = line_solver()
    with pytest.raises(FileNotFoundError, match="no solverstate 'nowhere'"):
        solver.restore("nowhere")
    with pytest.raises(FileNotFoundError, match="no solverstate 'nowhere'"):
        solver.solve("nowhere")
    with pytest.raises(caffe.CaffeError):
        solver.net.save(tmp_path / "nowhere" / "net.caffemodel")


def test_nets_stay_in_their_process(session):
    with pytest.raises(TypeError, match="stays in its process"):
        weft.put(caffe.Net(linear(), caffe.TEST))
    with pytest.raises(TypeError, match="stays in its process"):
        weft.put(line_solver())
