"""Finds and reads the logs of node daemons, also of those that have ended (src/log/log_file.h)."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator

__all__ = ["find", "lines"]

_NAME = re.compile(r"node-(\d+)\.log")
_OLDER = 3  # LogFile::kOlder


def _folders(uid: int) -> list:
    """Where logs of this user may be: as `weft start` decides, also if that had another environment."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    own = [f"{runtime}/weft"] if runtime and uid == os.geteuid() else []
    return list(dict.fromkeys([*own, f"/run/user/{uid}/weft", f"/tmp/weft-{uid}"]))


def _open_folder(path: str, uid: int) -> int:
    """Any user may make a folder in /tmp: files in the folder of another user are not logs."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    info = os.fstat(folder)
    if info.st_uid == uid and not info.st_mode & 0o077:
        return folder
    os.close(folder)
    raise PermissionError(f"{path} belongs to another user, or is open to others")


def find(uid: int) -> dict:
    """{pid: path} of the logs of this user's daemons, the one that was written last at the end."""
    found = {}
    for path in _folders(uid):
        try:
            folder = _open_folder(path, uid)
        except OSError:
            continue
        try:
            for name in os.listdir(folder):
                match = _NAME.fullmatch(name)
                if match:
                    written = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mtime
                    found[int(match[1])] = max(found.get(int(match[1]), (0, "")), (written, f"{path}/{name}"))
        finally:
            os.close(folder)
    return {pid: path for pid, (_, path) in sorted(found.items(), key=lambda entry: entry[1])}


def lines(path: str, uid: int) -> Iterator[str]:
    """All that is kept of a log, the oldest first."""
    folder_path, _, name = path.rpartition("/")
    folder = _open_folder(folder_path, uid)
    parts: list = []
    try:
        # The newest first: a file that is renamed meanwhile is met twice, not missed.
        for part in [name, *(f"{name}.{number}" for number in range(1, _OLDER + 1))]:
            try:
                part_fd = os.open(part, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
            except FileNotFoundError:
                continue
            file = os.fdopen(part_fd, encoding="utf-8", errors="backslashreplace", newline="\n")
            parts.append((os.fstat(part_fd), file))
        seen = set()
        for info, _ in parts:
            if not stat.S_ISREG(info.st_mode):
                raise PermissionError(f"{path} is not a file")
        for info, file in reversed(parts):
            if info.st_ino not in seen:
                seen.add(info.st_ino)
                # What the C library or a sanitizer wrote is not escaped, as the daemon's own lines are.
                for line in file:
                    yield "".join(c if c.isprintable() else repr(c)[1:-1] for c in line.rstrip("\n"))
    finally:
        os.close(folder)
        for _, file in parts:
            file.close()
