"""Which of Ray's interfaces this process speaks. Read once, from the environment that driver and workers share."""

from __future__ import annotations

import os

from weft.compat import _finder

__all__ = ["IS_2018", "RAY_VERSION"]

_asked = _finder.version_of(os.environ)
if _asked not in _finder.VERSIONS:
    raise ImportError(
        f"{_finder.VARIABLE}={_asked!r}: there is no such Ray interface; known are {' and '.join(_finder.VERSIONS)}"
    )

IS_2018 = _asked == "0.6"
"""Times in milliseconds, references that print as ObjectID, and the other ways of Ray 0.6."""

RAY_VERSION = "0.6.0" if IS_2018 else "2.60.0"
"""The version of Ray whose interface this is; what programs compare `ray.__version__` with."""
