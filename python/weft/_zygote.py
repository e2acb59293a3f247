"""The zygote: a warm interpreter with one thread, from which the node daemon has Python workers forked.

Started by the node daemon as ``python -m weft._zygote`` with a SOCK_SEQPACKET socket as descriptor 3. It imports what
every worker needs, once, and then forks on request. It is the parent of the workers and reports how each one ended. It
ends when the daemon closes the socket; then the workers have no daemon either and exit on their own.

One packet each, little-endian (src/node/zygote.h):
    daemon to zygote  'F' uint64 worker               with three descriptors: the worker's socket, stdout, stderr
    zygote to daemon  'R' int32 pid                   ready; once
                      'F' uint64 worker, int32 pid    forked; -errno if that failed
                      'X' int32 pid, int32 status     the worker has ended, status as from waitpid
                      'W' text                        a warning for the driver

Only C modules of the interpreter are imported here, because their Python wrappers (socket, signal, selectors) would
cost more than everything else together, and every first task waits for this program.
"""

import gc

gc.disable()  # a collection before the fork would touch, and so unshare, every page of the interpreter

import _signal  # noqa: E402
import _socket  # noqa: E402
import os  # noqa: E402
import select  # noqa: E402
import sys  # noqa: E402

_DAEMON = 3
_NO_WORKER = -1
_QUIET_MS = 50  # without requests, after which the slow imports are made


def _int32(value):
    return value.to_bytes(4, "little", signed=True)


def _set_process_name(name):
    try:
        with open("/proc/self/comm", "w") as comm:
            comm.write(name)
    except OSError:
        pass  # only for people who look at `ps`


def _receive_request(daemon):
    """One request as (worker number, descriptors), or None when the daemon is gone."""
    try:
        packet, ancillary, flags, _ = daemon.recvmsg(64, _socket.CMSG_SPACE(3 * 4), _socket.MSG_CMSG_CLOEXEC)
    except ConnectionError:
        return None
    descriptors = []
    for level, kind, data in ancillary:
        if level == _socket.SOL_SOCKET and kind == _socket.SCM_RIGHTS:
            for at in range(0, len(data) - len(data) % 4, 4):
                descriptors.append(int.from_bytes(data[at : at + 4], sys.byteorder))
    if not packet:
        return None
    if len(packet) != 9 or packet[:1] != b"F" or len(descriptors) != 3 or flags & _socket.MSG_CTRUNC:
        raise RuntimeError(f"the node daemon sent a request that is not understood: {packet!r}, {descriptors}")
    return int.from_bytes(packet[1:], "little"), descriptors


def _report_ended(daemon):
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        daemon.send(b"X" + _int32(pid) + _int32(status))


def _serve(daemon):
    """Forks on request. Returns the socket of the worker in a forked child, and _NO_WORKER when the daemon is gone."""
    wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    _signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    _signal.signal(_signal.SIGCHLD, lambda *_: None)  # a handler must exist for the wake-up to be written
    poll = select.poll()
    poll.register(daemon, select.POLLIN)
    poll.register(wake_read, select.POLLIN)
    daemon.send(b"R" + _int32(os.getpid()))
    complete = False
    while True:
        # The first workers are forked as soon as they can be; later ones find the slow imports done.
        ready = {descriptor for descriptor, _ in poll.poll(None if complete else _QUIET_MS)}
        if not ready and not complete:
            _complete()
            complete = True
            continue
        if wake_read in ready:
            try:
                os.read(wake_read, 4096)
            except BlockingIOError:
                pass
            _report_ended(daemon)
        if _DAEMON not in ready:
            continue
        request = _receive_request(daemon)
        if request is None:
            return _NO_WORKER
        worker, (socket, output, error) = request
        try:
            pid = os.fork()
        except OSError as failure:
            pid = -(failure.errno or 1)
        if pid == 0:
            _signal.set_wakeup_fd(-1)
            daemon.close()
            os.close(wake_read)
            os.close(wake_write)
            _become_worker(output, error)
            return socket
        for descriptor in (socket, output, error):
            os.close(descriptor)
        daemon.send(b"F" + worker.to_bytes(8, "little") + _int32(pid))


def _complete():
    """The imports that a first task can do without."""
    from weft import _worker

    _worker.import_the_rest()
    gc.freeze()


def _become_worker(output, error):
    # A group of its own: a task that signals its process group must not reach the other workers.
    os.setpgid(0, 0)
    os.dup2(output, 1)
    os.dup2(error, 2)
    os.close(output)
    os.close(error)
    # Whole lines arrive at the driver when they are printed, not when a buffer is full.
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.reconfigure(line_buffering=True)
    # Ctrl-C belongs to the driver, which ends its workers itself; everything else is as in a fresh process.
    _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)
    _signal.signal(_signal.SIGINT, _signal.SIG_IGN)
    _set_process_name("weft-worker")
    # Without this, all workers would draw the same numbers.
    if "random" in sys.modules:
        sys.modules["random"].seed()
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    gc.enable()


def main():
    daemon = _socket.socket(fileno=_DAEMON)
    daemon.setblocking(True)
    os.set_inheritable(_DAEMON, False)
    _set_process_name("weft-zygote")
    from weft import _worker  # and with it all that a worker needs

    if "WEFT_WARM_MODULES" in os.environ:
        from weft import _preload

        _preload.import_modules(lambda text: daemon.send(b"W" + text.encode("utf-8", "backslashreplace")[:4000]))
    gc.freeze()
    socket = _serve(daemon)
    if socket == _NO_WORKER:
        os._exit(0)
    # A worker from here on. What is left of the zygote on the stack holds nothing; the interpreter ends in order, so
    # that atexit functions of the user's modules run.
    sys.exit(_worker.main(socket))


if __name__ == "__main__":
    main()
