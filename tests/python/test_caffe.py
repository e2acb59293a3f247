"""Caffe without Caffe: nets written in Python, messages as text and as bytes, and errors that need no library.

tests/learning/caffe has the real one.
"""

from __future__ import annotations

import os
import pickle
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest
import weft
from weft.compat import caffe
from weft.compat.caffe import NetSpec, _files, install, to_proto
from weft.compat.caffe import layers as L
from weft.compat.caffe import params as P
from weft.compat.caffe._binary import DecodeError
from weft.compat.caffe.proto import caffe_pb2, text_format

ROOT = Path(__file__).resolve().parents[2]
SEEDS = Path(os.environ.get("WEFT_SEEDS") or ROOT.parent / "shared" / "seeds")
WEFT = str(Path(sysconfig.get_path("scripts")) / "weft")


def parsed(text: str, kind=caffe_pb2.NetParameter):
    return text_format.Parse(text, kind())


def weft_run(folder: Path, source: str, *options: str) -> subprocess.CompletedProcess:
    (folder / "program.py").write_text(source)
    return subprocess.run([WEFT, "run", *options, "program.py"], cwd=folder, capture_output=True, text=True, timeout=60)


# ----- nets ------------------------------------------------------------------

LENET = """
layer {
  name: "data" type: "Data" top: "data" top: "label"
  transform_param { scale: 0.00390625 }
  data_param { source: "digits" batch_size: 64 backend: LMDB }
}
layer {
  name: "conv1" type: "Convolution" bottom: "data" top: "conv1"
  param { lr_mult: 1 } param { lr_mult: 2 }
  convolution_param { num_output: 20 kernel_size: 5 weight_filler { type: "xavier" } }
}
layer {
  name: "pool1" type: "Pooling" bottom: "conv1" top: "pool1"
  pooling_param { pool: MAX kernel_size: 2 stride: 2 }
}
layer { name: "ip1" type: "InnerProduct" bottom: "pool1" top: "ip1" inner_product_param { num_output: 10 } }
layer { name: "relu1" type: "ReLU" bottom: "ip1" top: "ip1" }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip1" bottom: "label" top: "loss" }
layer {
  name: "accuracy" type: "Accuracy" bottom: "ip1" bottom: "label" top: "accuracy" include { phase: TEST }
}
"""


def lenet():
    n = NetSpec()
    n.data, n.label = L.Data(
        source="digits", backend=P.Data.LMDB, batch_size=64, ntop=2, transform_param={"scale": 1 / 256}
    )
    n.conv1 = L.Convolution(
        n.data,
        kernel_size=5,
        num_output=20,
        weight_filler={"type": "xavier"},
        param=[{"lr_mult": 1}, {"lr_mult": 2}],
    )
    n.pool1 = L.Pooling(n.conv1, kernel_size=2, stride=2, pool=P.Pooling.MAX)
    n.ip1 = L.InnerProduct(n.pool1, num_output=10)
    n.relu1 = L.ReLU(n.ip1, in_place=True)
    n.loss = L.SoftmaxWithLoss(n.relu1, n.label)
    n["accuracy"] = L.Accuracy(n.relu1, n.label, include={"phase": caffe.TEST})
    return n.to_proto()


def test_net_spec_writes_the_net():
    assert lenet() == parsed(LENET)


def test_residual_block_has_every_layer_once():
    n = NetSpec()
    n.data = L.Input(shape={"dim": [1, 3, 8, 8]})
    n.conv = L.Convolution(n.data, num_output=3, kernel_size=3, pad=1, bias_term=False)
    n.bn = L.BatchNorm(n.conv, in_place=True, use_global_stats=True)
    n.scale = L.Scale(n.bn, in_place=True, bias_term=True)
    n.sum = L.Eltwise(n.data, n.scale, operation=P.Eltwise.SUM)
    n.relu = L.ReLU(n.sum, in_place=True)
    assert n.to_proto() == parsed(
        """
        layer { name: "data" type: "Input" top: "data" input_param { shape { dim: [1, 3, 8, 8] } } }
        layer {
          name: "conv" type: "Convolution" bottom: "data" top: "conv"
          convolution_param { num_output: 3 kernel_size: 3 pad: 1 bias_term: false }
        }
        layer {
          name: "bn" type: "BatchNorm" bottom: "conv" top: "conv" batch_norm_param { use_global_stats: true }
        }
        layer { name: "scale" type: "Scale" bottom: "conv" top: "conv" scale_param { bias_term: true } }
        layer { name: "sum" type: "Eltwise" bottom: "data" bottom: "conv" top: "sum" eltwise_param { operation: SUM } }
        layer { name: "relu" type: "ReLU" bottom: "sum" top: "sum" }
        """
    )


def test_to_proto_numbers_layers_by_type():
    data = L.Input(shape={"dim": [1, 2]})
    first = L.InnerProduct(data, num_output=3)
    second = L.InnerProduct(L.ReLU(first, in_place=True), num_output=4)
    net = to_proto(second)
    assert [layer.name for layer in net.layer] == ["Input1", "InnerProduct1", "ReLU1", "InnerProduct2"]
    assert list(net.layer[3].bottom) == ["InnerProduct1"]


def test_deep_net_needs_no_deep_stack():
    blob = L.Input(shape={"dim": [1]})
    for _ in range(3 * sys.getrecursionlimit()):
        blob = L.ReLU(blob)
    assert len(to_proto(blob).layer) == 3 * sys.getrecursionlimit() + 1


@pytest.mark.parametrize(
    "write, kind, message",
    [
        (lambda: L.Convolutoin(), AttributeError, "no layer 'Convolutoin'; did you mean 'Convolution'"),
        (lambda: P.Pooling.MIN, AttributeError, "PoolingParameter has no value 'MIN'"),
        (lambda: P.Poling, AttributeError, "no parameters for 'Poling'; did you mean 'Pooling'"),
        (lambda: L.Pooling(kernel_sice=2), AttributeError, "no field 'kernel_sice'; did you mean 'kernel_size'"),
        (lambda: L.Pooling(kernel_size="2"), TypeError, "PoolingParameter.kernel_size is a whole number, not '2'"),
        (lambda: L.Pooling(kernel_size=-2), ValueError, "PoolingParameter.kernel_size is uint32"),
        (lambda: L.Data(transform_param=3), TypeError, "Data: a dict or a TransformationParameter is expected"),
        (lambda: L.ReLU("data"), TypeError, "ReLU: input 0 is not a blob of a layer but 'data'"),
        (lambda: L.Concat(in_place=True), ValueError, "a layer that works in place has one input"),
        (lambda: to_proto("loss"), TypeError, "argument 0 of to_proto is not a blob"),
        (lambda: NetSpec().loss, AttributeError, "no blob 'loss'"),
    ],
)
def test_mistakes_in_nets_are_named_where_they_are_written(write, kind, message):
    with pytest.raises(kind, match=re.escape(message)):
        write()


# ----- the manual's program --------------------------------------------------


def manual() -> str:
    found = sorted(SEEDS.glob("002_*.txt"))
    if not found:
        pytest.skip(f"the seeds are not there: {SEEDS}")
    (program,) = re.findall(r"^```\n(from __future__.*?)^```$", found[0].read_text(), re.M | re.S)
    return program


def test_program_of_the_manual_writes_its_two_nets(tmp_path):
    result = weft_run(tmp_path, manual(), "--ray-api=0.6")
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    train, test = (parsed((tmp_path / f"{name}.prototxt").read_text()) for name in ("train", "test"))
    assert (
        train.layer[0]
        == parsed(
            """
        layer {
          name: "Data1" type: "Data" top: "Data1" top: "Data2"
          transform_param { crop_size: 227 mirror: true mean_value: 104 mean_value: 117 mean_value: 123 }
          data_param { source: "/path/to/caffe-train-lmdb" batch_size: 256 backend: LMDB }
        }
        """
        ).layer[0]
    )
    assert (
        train.layer[4]
        == parsed(
            """
        layer {
          name: "LRN1" type: "LRN" bottom: "Pooling1" top: "LRN1"
          lrn_param { local_size: 5 alpha: 0.0001 beta: 0.75 }
        }
        """
        ).layer[0]
    )
    counts = {layer.type: sum(other.type == layer.type for other in train.layer) for layer in train.layer}
    assert counts == {
        "Data": 1,
        "Convolution": 5,
        "ReLU": 7,
        "Pooling": 3,
        "LRN": 2,
        "InnerProduct": 3,
        "Dropout": 2,
        "SoftmaxWithLoss": 1,
    }
    accuracy = 'layer { name: "Accuracy1" type: "Accuracy" bottom: "InnerProduct3" bottom: "Data2" top: "Accuracy1" }'
    assert test.layer[-1] == parsed(accuracy).layer[0]
    del test.layer[-1]
    test.layer[0].data_param.batch_size = 256
    test.layer[0].data_param.source = "/path/to/caffe-train-lmdb"
    assert test == train


def test_workers_have_the_name_too(tmp_path):
    source = """
import ray
from caffe import layers as L, to_proto
from caffe.proto import caffe_pb2

ray.init(num_cpus=1)

@ray.remote
def grown(net):
    import caffe.proto.caffe_pb2
    assert type(net) is caffe_pb2.NetParameter is caffe.proto.caffe_pb2.NetParameter
    net.layer.add(name="more", type="ReLU")
    return net

net = ray.get(grown.remote(to_proto(L.Input(shape=dict(dim=[1, 2])))))
print([layer.name for layer in net.layer])
"""
    result = weft_run(tmp_path, source, "--ray-api=0.6")
    assert result.stdout == "['Input1', 'more']\n", result.stderr


def test_installed_caffe_is_left_alone(tmp_path):
    (tmp_path / "caffe").mkdir()
    (tmp_path / "caffe" / "__init__.py").write_text("")
    (tmp_path / "caffe" / "own.py").write_text("name = 'the installed one'")
    result = weft_run(tmp_path, "import caffe.own; print(caffe.own.name)", "--ray-api=0.6")
    assert result.stdout == "the installed one\n", result.stderr


def test_name_is_given_only_with_the_old_interface(tmp_path):
    result = weft_run(tmp_path, "import caffe")
    assert result.returncode != 0 and "No module named 'caffe'" in result.stderr


# ----- messages --------------------------------------------------------------


def test_text_is_read_as_it_is_written():
    net = parsed(LENET)
    net.name = 'a "name" with\nlines, \\ and ü'
    net.layer[0].transform_param.scale = 1 / 3
    assert parsed(str(net)) == net


def test_text_forms_that_protobuf_allows():
    solver = parsed(
        """
        net: "a" 'b'  # strings in a row are one
        base_lr: 1e-2f, momentum: .9; max_iter: 0x10
        stepvalue: [1, 2] stepvalue: 3
        snapshot_format: HDF5 debug_info: true
        net_param: < name: "x\\x41\\102" >
        """,
        caffe_pb2.SolverParameter,
    )
    assert (solver.net, solver.max_iter, list(solver.stepvalue)) == ("ab", 16, [1, 2, 3])
    assert solver.base_lr == pytest.approx(0.01) and solver.momentum == pytest.approx(0.9)
    assert solver.snapshot_format == caffe_pb2.SolverParameter.HDF5 and solver.debug_info
    assert solver.net_param.name == "xAB"


def test_bytes_are_those_of_protobuf():
    datum = caffe_pb2.Datum(channels=1, height=300, data=b"\x00\xff", label=-1, float_data=[1.5])
    assert datum.SerializeToString() == (
        b"\x08\x01\x10\xac\x02\x22\x02\x00\xff\x28\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x35\x00\x00\xc0\x3f"
    )
    blob = caffe_pb2.BlobProto(data=[1.0, 2.0])
    blob.shape.dim.extend([2, 300])
    assert blob.SerializeToString() == b"\x2a\x08\x00\x00\x80\x3f\x00\x00\x00\x40\x3a\x05\x0a\x03\x02\xac\x02"


def test_bytes_are_read_as_they_are_written():
    net = parsed(LENET)
    net.layer[1].blobs.add(data=[0.5, -1.0], double_data=[1e300])
    assert caffe_pb2.NetParameter.FromString(net.SerializeToString()) == net
    assert pickle.loads(pickle.dumps(net)) == net


def test_bytes_of_other_versions_are_read():
    unpacked = b"\x2d\x00\x00\x80\x3f" + b"\x2d\x00\x00\x00\x40"
    unknown = b"\xa2\x7d\x03abc" + b"\xa8\x7d\x05" + b"\xad\x7d\x00\x00\x00\x00"
    assert caffe_pb2.BlobProto.FromString(unpacked + unknown) == caffe_pb2.BlobProto(data=[1.0, 2.0])


@pytest.mark.parametrize(
    "data, message",
    [
        (b"\x0a\x05abc", "NetParameter, byte 2: 5 bytes were announced, 3 are there"),
        (b"\xff", "a number is cut off"),
        (b"\xa2\x06\x03\x0a\x05x", "NetParameter.layer"),
        (b"\x08\x01", "field name has the wire type 0, not 2"),
        (b"\x03", "a field has the number 0"),
    ],
)
def test_bytes_that_are_no_message(data, message):
    with pytest.raises(DecodeError, match=re.escape(message)):
        caffe_pb2.NetParameter.FromString(data)


def test_messages_behave_as_those_of_protobuf():
    layer = caffe_pb2.LayerParameter()
    assert layer.convolution_param.bias_term is True and not layer.HasField("convolution_param")
    layer.convolution_param.kernel_size.append(3)
    assert layer.HasField("convolution_param") and layer.phase == caffe_pb2.TRAIN
    other = caffe_pb2.LayerParameter()
    other.CopyFrom(layer)
    other.convolution_param.kernel_size[0] = 5
    assert list(layer.convolution_param.kernel_size) == [3] and layer != other
    layer.MergeFrom(other)
    assert list(layer.convolution_param.kernel_size) == [3, 5]
    layer.ClearField("convolution_param")
    assert layer.SerializeToString() == b""
    with pytest.raises(AttributeError, match="cannot be assigned to; use CopyFrom"):
        layer.convolution_param = other.convolution_param
    with pytest.raises(AttributeError, match="no field 'nme'; did you mean 'name'"):
        layer.nme = "x"


def test_messages_go_to_tasks_and_come_back(session):
    @weft.remote
    def named(net):
        net.name = "seen"
        return net

    net = weft.get(named.remote(lenet()))
    assert net.name == "seen"
    net.ClearField("name")
    assert net == lenet()


# ----- bad input -------------------------------------------------------------


@pytest.mark.parametrize(
    "text, line, field, why",
    [
        ('layer {\n  name: "a"\n  typo: "b"\n}', 3, "layer", "LayerParameter has no field 'typo'; did you mean 'type'"),
        ('layer {\n  name: "a"\n', 3, "layer", "the text ends, and '}' is missing"),
        ('layer {\n  name: "a\n}', 2, "layer.name", "a string is not closed"),
        ("layer {\n  name: a }", 2, "layer.name", "a string in quotes is expected, not 'a'"),
        ("layer {\n\n  pooling_param { pool: MIN } }", 3, "layer.pooling_param.pool", "has no value 'MIN'"),
        ("layer { pooling_param {\n pad: -1 } }", 2, "layer.pooling_param.pad", "too large"),
        ("layer { pooling_param {\n pad: 1.5 } }", 2, "layer.pooling_param.pad", "a whole number is expected"),
        ("layer { dropout_param {\n dropout_ratio: x } }", 2, "layer.dropout_param.dropout_ratio", "a number is"),
        ("force_backward:\n maybe", 2, "force_backward", "true or false is expected"),
        ('name: "a"\nname: "b"', 2, "name", "for the second time"),
        ("layer: 3", 1, "layer", "'{' is expected, since this is a LayerParameter"),
        ("name = 3", 1, "name", "':' and a string are expected"),
        ("}", 1, "", "the name of a field is expected"),
        ("\x00", 1, "", "means nothing here"),
    ],
)
def test_syntax_errors_name_line_and_field(tmp_path, text, line, field, why):
    path = tmp_path / "net.prototxt"
    path.write_text(text)
    with pytest.raises(text_format.ParseError, match=re.escape(why)) as failed:
        caffe.Net(str(path), caffe.TEST)
    assert (failed.value.line, failed.value.field) == (line, field)
    assert str(failed.value).startswith(f"{path}, line {line}, column ")
    again = pickle.loads(pickle.dumps(failed.value))
    assert (str(again), again.line) == (str(failed.value), line)


@pytest.mark.parametrize(
    "text, message",
    [
        ('layer {\n name: "a"\n type: "Convolutoin" }', "line 3: layer 'a' has the type 'Convolutoin', which Caffe"),
        ('layer { type: "ReLU" }\nlayer {\n name: "b" }', "line 2: layer 'b' has no type"),
    ],
)
def test_unknown_layers_are_named(tmp_path, text, message):
    path = tmp_path / "net.prototxt"
    path.write_text(text)
    solver = tmp_path / "solver.prototxt"
    solver.write_text(f'net: "{path}"')
    for read in (lambda: caffe.Net(path, caffe.TEST), lambda: caffe.SGDSolver(solver)):
        with pytest.raises(ValueError, match=re.escape(f"{path}, {message}")):
            read()


def test_missing_files_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no net 'nowhere.prototxt'"):
        caffe.Net("nowhere.prototxt", caffe.TEST)
    with pytest.raises(FileNotFoundError, match="there is no caffemodel 'nowhere.caffemodel'"):
        caffe.Net(lenet(), "nowhere.caffemodel", caffe.TEST)
    with pytest.raises(FileNotFoundError, match="there is no solver 'nowhere.prototxt'"):
        caffe.SGDSolver("nowhere.prototxt")
    with pytest.raises(FileNotFoundError, match="there is no net 'nowhere.prototxt'"):
        caffe.get_solver(caffe_pb2.SolverParameter(net="nowhere.prototxt"))


def test_gpu_is_refused(tmp_path):
    caffe.set_mode_cpu()
    with pytest.raises(caffe.CaffeError, match="on CPUs only"):
        caffe.set_mode_gpu()
    with pytest.raises(caffe.CaffeError, match="no GPU 1"):
        caffe.set_device(1)
    path = tmp_path / "solver.prototxt"
    path.write_text('net: "x"\nsolver_mode: GPU')
    with pytest.raises(ValueError, match="line 2: solver_mode is GPU, but this Caffe computes on CPUs only"):
        caffe.SGDSolver(path)


def test_missing_library_says_what_fetches_it(tmp_path):
    """In a process of its own: a library that was loaded stays."""
    source = """
from weft.compat import caffe
from weft.compat.caffe import layers as L, to_proto
for use in (lambda: caffe.Net(to_proto(L.Input(shape=dict(dim=[1]))), caffe.TEST), caffe.layer_type_list,
            lambda: caffe.SGDSolver(caffe.proto.caffe_pb2.SolverParameter()), lambda: caffe.set_random_seed(1)):
    try:
        use()
    except caffe.CaffeError as error:
        print(error)
"""
    environment = {**os.environ, "WEFT_CAFFE": str(tmp_path)}
    command = [sys.executable, "-c", source]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    lines = result.stdout.splitlines()
    assert len(lines) == 4 and len(set(lines)) == 1, result.stderr
    assert lines[0].startswith(f"there is no Caffe in {tmp_path}: `python -m weft.compat.caffe.install` fetches it")


def run_install(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "weft.compat.caffe.install", *arguments]
    environment = {**os.environ, "WEFT_CAFFE": str(folder), **environment}
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="Caffe is compiled for x86-64 only")
def test_install_names_all_that_is_missing(tmp_path):
    folder = tmp_path / "caffe"
    tools = tmp_path / "tools"
    tools.mkdir()
    result = run_install(folder, PATH=str(tools))
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == (
        "weft.compat.caffe.install: these are missing: Maven (mvn), g++; on Debian: apt-get install maven g++\n"
    )
    compiler = shutil.which("g++")
    assert compiler
    (tools / "g++").write_text(f'#!/bin/sh\nexec {compiler} -nostdinc "$@"\n')  # finds no header at all
    (tools / "g++").chmod(0o755)
    result = run_install(folder, PATH=f"{tools}:/nowhere")
    assert "Maven (mvn), the headers of Boost (boost/shared_ptr.hpp)" in result.stderr
    assert result.stderr.endswith("apt-get install maven libboost-dev\n")
    assert list(folder.iterdir()) == []


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="Caffe is compiled for x86-64 only")
def test_install_compiles_what_the_package_has(tmp_path):
    """The shim's source is package data. Caffe's own headers are not here, so the compiler says which it lacks."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "complete").touch()
    (tmp_path / "boost").mkdir()
    (tmp_path / "boost" / "shared_ptr.hpp").touch()
    result = run_install(tmp_path, CPATH=str(tmp_path))
    assert result.returncode == 1
    assert re.search(r"caffe_shim\.cc could not be compiled \(exit status 1\)\n.*google/protobuf", result.stderr, re.S)


def test_install_takes_no_arguments(tmp_path):
    assert run_install(tmp_path, "--help").stdout.startswith("Fetches Caffe 1.0")
    assert run_install(tmp_path, "elsewhere").returncode == 2


@pytest.mark.parametrize("arguments", [(), ("weights",), (2,), (0, 1), ("weights", 0, "more")])
def test_arguments_of_net_are_checked(arguments):
    with pytest.raises(TypeError, match="phase"):
        caffe.Net(lenet(), *arguments)


def test_weights_of_another_net_are_refused(tmp_path):
    model = caffe_pb2.NetParameter()
    blob = model.layer.add(name="ip", type="InnerProduct").blobs.add(data=[0.0] * 6)
    blob.shape.dim.extend([2, 3])
    path = tmp_path / "net.caffemodel"
    path.write_bytes(model.SerializeToString())
    _files.check_weights(str(path), {"ip": [(2, 3)], "new": [(1,)]})
    for shapes, message in [
        ({"ip": [(3, 2)]}, "array 0 of layer 'ip' has the shape (2, 3) there and (3, 2) in the net"),
        ({"ip": [(2, 3), (2,)]}, "layer 'ip' has 1 arrays there and 2 in the net"),
        ({"fc": [(2, 3)]}, "it has the layers ip, and the net has the layers fc"),
    ]:
        with pytest.raises(ValueError, match=re.escape(f"{path} has weights for another net: {message}")):
            _files.check_weights(str(path), shapes)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match="is not a caffemodel"):
        _files.check_weights(str(path), {"ip": [(2, 3)]})


def test_weights_of_old_files_have_four_dimensions(tmp_path):
    model = caffe_pb2.NetParameter()
    model.layers.add(name="ip").blobs.add(num=1, channels=1, height=2, width=3)
    path = tmp_path / "old.caffemodel"
    path.write_bytes(model.SerializeToString())
    _files.check_weights(str(path), {"ip": [(2, 3)]})
    with pytest.raises(ValueError, match="another net"):
        _files.check_weights(str(path), {"ip": [(2, 4)]})


def test_arrays_as_messages():
    numpy = pytest.importorskip("numpy")
    image = numpy.arange(24, dtype=numpy.uint8).reshape(2, 3, 4)
    datum = caffe.io.array_to_datum(image, 7)
    assert (datum.label, datum.data) == (7, image.tobytes())
    assert (caffe.io.datum_to_array(datum) == image).all()
    floats = caffe.io.array_to_datum(image / 2)
    assert (caffe.io.datum_to_array(floats) == image / 2).all() and not floats.HasField("label")
    blob = caffe.io.array_to_blobproto(image / 4)
    assert (caffe.io.blobproto_to_array(blob) == image / 4).all()
    with pytest.raises(ValueError, match="channels, rows and columns"):
        caffe.io.array_to_datum(image[0])


def test_install_unpacks_nothing_outside_its_folder(tmp_path):
    jar, folder = tmp_path / "caffe.jar", tmp_path / "caffe"
    inside = "org/bytedeco/caffe/linux-x86_64/include/caffe/"
    with zipfile.ZipFile(jar, "w") as archive:
        archive.writestr(inside + "net.hpp", "kept")
        archive.writestr(inside + "../../../outside.hpp", "planted")
    with zipfile.ZipFile(jar) as archive:
        install._unpack(archive, folder)
    assert [path.relative_to(folder).as_posix() for path in folder.rglob("*.hpp")] == ["include/caffe/net.hpp"]
    assert not list(tmp_path.glob("*.hpp"))
