"""`import tensorflow` under `weft run --ray-api=0.6`: becomes the view of TensorFlow 1 (weft.compat._tensorflow)."""

import sys

del sys.modules[__name__]  # this is not TensorFlow, which is to be found under the name
try:
    from weft.compat import _tensorflow
except ImportError:  # another interpreter, in which there is no weft: TensorFlow as it is
    import os
    from importlib import import_module

    _here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    sys.path[:] = [_entry for _entry in sys.path if os.path.abspath(_entry) != _here]
    import_module(__name__)
else:
    _tensorflow.become_view()
