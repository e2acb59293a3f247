"""The real Caffe, by the C interface of caffe_shim.h. Loaded when it is first needed, in each process.

`python -m weft.compat.caffe.install` fetches and compiles it. What Caffe refuses raises CaffeError with its reason.
"""

from __future__ import annotations

import ctypes
import functools
import os

__all__ = ["BYTES", "CaffeError", "check", "library", "made", "text"]

BYTES = 1  # CF_BYTES

_INT, _FLOAT, _HANDLE, _TEXT, _SIZE = ctypes.c_int, ctypes.c_float, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t
_INTS = ctypes.POINTER(ctypes.c_int)
# Of each function that is called: what it returns, and what it takes.
_FUNCTIONS = {
    "cf_error": (_TEXT,),
    "cf_layer_types": (_TEXT,),
    "cf_set_random_seed": (_INT, ctypes.c_uint32),
    "cf_new_net": (_HANDLE, _TEXT, _SIZE, _INT, _INT),
    "cf_delete_net": (None, _HANDLE),
    "cf_forward": (_INT, _HANDLE, _INT, _INT, ctypes.POINTER(_FLOAT)),
    "cf_backward": (_INT, _HANDLE, _INT, _INT),
    "cf_clear_gradients": (_INT, _HANDLE),
    "cf_reshape": (_INT, _HANDLE),
    "cf_copy_from": (_INT, _HANDLE, _TEXT),
    "cf_save": (_INT, _HANDLE, _TEXT),
    "cf_share_with": (_INT, _HANDLE, _HANDLE),
    "cf_layer_count": (_INT, _HANDLE),
    "cf_layer_name": (_TEXT, _HANDLE, _INT),
    "cf_layer_type": (_TEXT, _HANDLE, _INT),
    "cf_blob_count": (_INT, _HANDLE),
    "cf_blob_name": (_TEXT, _HANDLE, _INT),
    "cf_ends": (_INT, _HANDLE, _INT, _INTS, _INT),
    "cf_layer_ends": (_INT, _HANDLE, _INT, _INT, _INTS, _INT),
    "cf_param_count": (_INT, _HANDLE, _INT),
    "cf_blob": (_HANDLE, _HANDLE, _INT),
    "cf_param": (_HANDLE, _HANDLE, _INT, _INT),
    "cf_delete_blob": (None, _HANDLE),
    "cf_shape": (_INT, _HANDLE, _INTS, _INT),
    "cf_set_shape": (_INT, _HANDLE, _INTS, _INT),
    "cf_memory": (_HANDLE, _HANDLE, _INT, ctypes.POINTER(_HANDLE)),
    "cf_delete_memory": (None, _HANDLE),
    "cf_new_solver": (_HANDLE, _TEXT, _SIZE, _INT),
    "cf_delete_solver": (None, _HANDLE),
    "cf_step": (_INT, _HANDLE, _INT),
    "cf_solve": (_INT, _HANDLE, _TEXT),
    "cf_iteration": (_INT, _HANDLE),
    "cf_snapshot": (_INT, _HANDLE),
    "cf_restore": (_INT, _HANDLE, _TEXT),
    "cf_solver_net": (_HANDLE, _HANDLE),
    "cf_test_net_count": (_INT, _HANDLE),
    "cf_test_net": (_HANDLE, _HANDLE, _INT),
}


class CaffeError(RuntimeError):
    """Caffe is not there, or it refused something; the message has its reason."""


@functools.cache
def library() -> ctypes.CDLL:
    from .install import folder

    path = os.path.join(folder(), "lib", "libcaffe_shim.so")
    if not os.path.exists(path):
        raise CaffeError(
            f"there is no Caffe in {folder()}: `python -m weft.compat.caffe.install` fetches it (51 MB), or WEFT_CAFFE "
            "names the folder where it is; nets are written and read without it, but computed by it"
        )
    try:
        loaded = ctypes.CDLL(path)
        for name, (result, *arguments) in _FUNCTIONS.items():
            function = getattr(loaded, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as error:
        remedy = "delete the folder and call `python -m weft.compat.caffe.install`"
        raise CaffeError(f"the Caffe in {folder()} cannot be used: {error}; {remedy}") from None
    return loaded


def check(code: int) -> None:
    if code != 0:
        raise CaffeError(library().cf_error().decode(errors="replace"))


def made(handle):
    """The handle that a function made, if it made one."""
    check(0 if handle else -1)
    return handle


def text(value) -> bytes:
    """A path or a name as C takes it."""
    return os.fsencode(value)
