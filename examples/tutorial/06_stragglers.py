"""Stragglers: go on with the results that are there, and take the slow ones later.

`weft.wait` gives what is ready and what is not, as soon as enough are ready or the time is over.
"""

import time

import weft

DELAYS = [0.1, 3.0, 0.2, 2.5, 0.3, 2.0]  # seconds; every other mirror is slow today


@weft.remote
def download(mirror):
    time.sleep(DELAYS[mirror])
    return mirror


if __name__ == "__main__":
    with weft.init(num_cpus=6):
        pending = [download.remote(mirror) for mirror in range(6)]
        started = time.monotonic()
        quick, slow = weft.wait(pending, num_returns=3)
        assert sorted(weft.get(quick)) == [0, 2, 4]
        assert time.monotonic() - started < 2.0  # before the first of the slow ones
        assert len(slow) == 3

        # With a time limit, wait may return fewer than asked for. It never raises for that.
        ready, rest = weft.wait(slow, num_returns=3, timeout=0.01)
        assert len(ready) + len(rest) == 3 and rest

        # get with a time limit does raise, and the task goes on.
        try:
            weft.get(slow[0], timeout=0.01)
        except weft.GetTimeoutError:
            pass
        else:
            raise AssertionError("mirror 1 was quick")
        assert sorted(weft.get(slow)) == [1, 3, 5]
    print("ok")
