"""Actors: an object that lives in a worker of its own and keeps its state between calls.

The calls that one caller makes run one at a time, in the order in which they were made. Two actors work side by side.
"""

import os
import time

import weft


@weft.remote
class Account:
    def __init__(self, owner, balance=0):
        self.owner = owner
        self.balance = balance

    def deposit(self, amount):
        self.balance += amount
        return self.balance

    def withdraw(self, amount):
        if amount > self.balance:
            raise ValueError(f"{self.owner} has {self.balance} only")
        self.balance -= amount
        return self.balance

    def audit(self):
        started = time.time()
        time.sleep(0.3)
        return os.getpid(), started, time.time()


if __name__ == "__main__":
    with weft.init(num_cpus=2):
        ada, ben = Account.remote("Ada"), Account.remote("Ben", balance=50)
        assert weft.get([ada.deposit.remote(10) for _ in range(5)]) == [10, 20, 30, 40, 50]
        assert weft.get(ben.withdraw.remote(20)) == 30

        # A call that raises leaves the actor as it was.
        try:
            weft.get(ben.withdraw.remote(1000))
        except ValueError as error:
            assert "Ben has 30 only" in str(error)
        assert weft.get(ben.deposit.remote(0)) == 30

        # Each has its own process, and they work at the same time.
        (pid1, from1, until1), (pid2, from2, until2) = weft.get([ada.audit.remote(), ben.audit.remote()])
        assert pid1 != pid2
        assert max(from1, from2) < min(until1, until2)
    print("ok")
