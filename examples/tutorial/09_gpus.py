"""GPUs: tasks and actors ask for them, and are told which ones are theirs.

weft counts GPUs and tells each task its numbers, also in CUDA_VISIBLE_DEVICES, which the libraries obey. What is
declared in `init` need not be there, so this program runs without any hardware.
"""

import os
import time

import weft


@weft.remote(num_gpus=1)
def train(seconds):
    started = time.time()
    time.sleep(seconds)
    return weft.get_gpu_ids(), os.environ["CUDA_VISIBLE_DEVICES"], started, time.time()


@weft.remote(num_gpus=1)
class Model:
    def gpus(self):
        return weft.get_gpu_ids()


@weft.remote(num_gpus=0.5)
def infer():
    time.sleep(0.2)
    return weft.get_gpu_ids()


@weft.remote
def without():
    return weft.get_gpu_ids()


if __name__ == "__main__":
    with weft.init(num_cpus=4, num_gpus=2):
        runs = weft.get([train.remote(0.3) for _ in range(4)])
        for gpus, visible, _, _ in runs:
            assert len(gpus) == 1 and int(gpus[0]) in (0, 1) and visible == str(gpus[0])
        # Never more than two at a time, and never two on the same GPU.
        for _, _, started, _ in runs:
            at_it = [run[0][0] for run in runs if run[2] <= started < run[3]]
            assert len(at_it) <= 2 and len(set(at_it)) == len(at_it)

        # An actor keeps its GPU as long as it lives.
        model = Model.remote()
        (mine,) = weft.get(model.gpus.remote())
        assert weft.get(model.gpus.remote()) == [mine]
        assert all(run[0] != [mine] for run in weft.get([train.remote(0.05) for _ in range(3)]))

        # Halves share one.
        shared = weft.get([infer.remote() for _ in range(2)])
        assert shared[0] == shared[1] != [mine]
        assert weft.get(without.remote()) == []
    print("ok")
