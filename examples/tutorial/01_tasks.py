"""Tasks: a function that runs in another process, several at a time.

`@weft.remote` makes a remote function; `f.remote(...)` starts a task and returns a reference at once; `weft.get` waits
for the value. Here four sensors are read. Each read waits for its device, so four of them should overlap.
"""

import time

import weft


@weft.remote
def read_sensor(number):
    started = time.time()
    time.sleep(0.5)  # the device takes its time
    return {"sensor": number, "celsius": 20 + number, "from": started, "until": time.time()}


if __name__ == "__main__":
    with weft.init(num_cpus=4):
        references = [read_sensor.remote(number) for number in range(4)]
        print("asked, not yet answered:", references[0])

        readings = weft.get(references)  # in the order of the references
        assert [reading["celsius"] for reading in readings] == [20, 21, 22, 23]

        # All four were at it at the same time: the last to start did so before the first was done.
        assert max(reading["from"] for reading in readings) < min(reading["until"] for reading in readings)

        # An exception in a task is raised where its value is asked for, as itself.
        @weft.remote
        def broken_sensor():
            raise OSError("no such device")

        try:
            weft.get(broken_sensor.remote())
        except OSError as error:
            assert "no such device" in str(error)
            assert isinstance(error, weft.TaskError)
        else:
            raise AssertionError("the exception was lost")
    print("ok")
