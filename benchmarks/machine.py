"""What the numbers were measured on, and how quiet it was."""

from __future__ import annotations

import os
import platform
import subprocess


def _first(path: str, key: str) -> str:
    try:
        with open(path) as file:
            for line in file:
                if line.startswith(key):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return "unknown"


def describe(repository: str) -> dict:
    try:
        commit = (
            subprocess.run(
                ["git", "-C", repository, "describe", "--always", "--dirty"],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                check=True,
            )
            .stdout.decode()
            .strip()
        )
    except (OSError, subprocess.CalledProcessError):
        commit = "unknown"
    return {
        "cpu": _first("/proc/cpuinfo", "model name"),
        "cpus": len(os.sched_getaffinity(0)),
        "memory_bytes": memory_bytes(),
        "kernel": platform.release(),
        "architecture": platform.machine(),
        "commit": commit,
    }


def memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def stolen_seconds() -> float:
    """CPU time that the hypervisor gave to others: on a virtual machine the usual reason for a strange number."""
    with open("/proc/stat") as file:
        fields = file.readline().split()
    return int(fields[8]) / os.sysconf("SC_CLK_TCK") if len(fields) > 8 else 0.0
