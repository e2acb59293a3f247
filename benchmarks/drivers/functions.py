"""Functions that peers import by name in their workers (the cheapest way for them to name a function)."""

from __future__ import annotations

import os
import time


def increment(x):
    return x + 1


def add(x, y):
    return x + y


def slow_pid(seconds):
    time.sleep(seconds)
    return os.getpid()
