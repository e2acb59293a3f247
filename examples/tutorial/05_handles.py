"""Handles: every holder of an actor's handle can call it: a task, another actor or the driver.

Three workers report their progress to one board, and the driver looks at the board while they work.
"""

import time

import weft


@weft.remote
class Board:
    def __init__(self):
        self.reports = {}

    def report(self, worker, step):
        self.reports.setdefault(worker, []).append(step)

    def snapshot(self):
        return self.reports


@weft.remote
def work(name, board, steps):
    for step in range(steps):
        time.sleep(0.02)
        # Not waited for: the calls of one caller arrive in the order in which they were made.
        last = board.report.remote(name, step)
    weft.get(last)
    return name


@weft.remote
class Foreman:
    """An actor that keeps the handle of another one, and passes it on."""

    def __init__(self, board):
        self.board = board

    def hire(self, names, steps):
        return weft.get([work.remote(name, self.board, steps) for name in names])


if __name__ == "__main__":
    with weft.init(num_cpus=4):
        board = Board.remote()
        foreman = Foreman.remote(board)
        hired = foreman.hire.remote(["lea", "max", "tom"], 10)

        sizes = []
        while not weft.wait([hired], timeout=0.02)[0]:
            sizes.append(sum(map(len, weft.get(board.snapshot.remote()).values())))
        assert sizes == sorted(sizes)  # a board only grows

        assert sorted(weft.get(hired)) == ["lea", "max", "tom"]
        assert weft.get(board.snapshot.remote()) == {name: list(range(10)) for name in ("lea", "max", "tom")}
        print(f"{len(sizes)} looks at the board while they worked")
    print("ok")
