"""Arrays as Caffe's messages: Datum, of which a Data layer's database consists, and BlobProto, as in a mean file."""

from __future__ import annotations

from .proto import caffe_pb2

__all__ = ["array_to_blobproto", "array_to_datum", "blobproto_to_array", "datum_to_array"]


def array_to_datum(arr, label=None):
    """An image as channels, rows and columns: of uint8 as bytes, of anything else as floats."""
    import numpy

    if arr.ndim != 3:
        raise ValueError(f"an image has channels, rows and columns; this array has the shape {arr.shape}")
    datum = caffe_pb2.Datum(channels=arr.shape[0], height=arr.shape[1], width=arr.shape[2])
    if arr.dtype == numpy.uint8:
        datum.data = arr.tobytes()
    else:
        datum.float_data.extend(arr.astype(float).flat)
    if label is not None:
        datum.label = label
    return datum


def datum_to_array(datum):
    import numpy

    shape = (datum.channels, datum.height, datum.width)
    if datum.encoded:
        raise ValueError("the Datum has a compressed image, which an image library decodes: datum.data")
    if datum.HasField("data"):
        return numpy.frombuffer(datum.data, numpy.uint8).reshape(shape)
    return numpy.array(datum.float_data, numpy.float32).reshape(shape)


def array_to_blobproto(arr, diff=None):
    blob = caffe_pb2.BlobProto()
    blob.shape.dim.extend(arr.shape)
    blob.data.extend(arr.astype(float).flat)
    if diff is not None:
        blob.diff.extend(diff.astype(float).flat)
    return blob


def blobproto_to_array(blob, return_diff=False):
    import numpy

    shape = tuple(blob.shape.dim) if blob.HasField("shape") else (blob.num, blob.channels, blob.height, blob.width)
    return numpy.array(blob.diff if return_diff else blob.data, numpy.float32).reshape(shape)
