"""What is said of a wait that lasts long. Called by C++; everything else about waiting is decided there."""

from __future__ import annotations

import os

__all__ = ["long_wait_seconds", "tell_of_long_wait"]

_VARIABLE = "WEFT_LONG_WAIT_SECONDS"
_DEFAULT_SECONDS = 10.0


def long_wait_seconds() -> float:
    """After how long a get or wait says what it waits for; 0: never."""
    text = os.environ.get(_VARIABLE, "")
    if not text:
        return _DEFAULT_SECONDS
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0.0 <= seconds <= 1e9:
        raise ValueError(
            f"the environment variable {_VARIABLE} must be a number of seconds (0: never say it), not {text!r}"
        )
    return seconds


def tell_of_long_wait(seconds: float, what: str) -> None:
    """One line for the user, once in each get or wait."""
    import logging

    logging.getLogger("weft").warning("after %.0f s: %s", seconds, what)
