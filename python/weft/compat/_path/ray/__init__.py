"""`import ray` under `weft run`: becomes weft.compat.ray."""

import sys

try:
    from weft.compat import _finder
except ImportError as error:
    raise ImportError(
        f"`weft run` makes `import ray` mean weft, but {sys.executable} has no weft ({error}); install it there, or "
        "unset PYTHONPATH and WEFT_RAY_API to use another Ray"
    ) from error

_finder.become_ours()
