"""`import caffe` under `weft run --ray-api=0.6`: becomes weft.compat.caffe, unless a Caffe is installed."""

import sys

del sys.modules[__name__]  # this is not Caffe, which is to be found under the name
try:
    from weft.compat import _caffe
except ImportError:  # another interpreter, in which there is no weft: Caffe as it is
    import os
    from importlib import import_module

    _here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    sys.path[:] = [_entry for _entry in sys.path if os.path.abspath(_entry) != _here]
    import_module(__name__)
else:
    _caffe.become_ours()
