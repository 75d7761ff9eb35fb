"""Short runs for compute-sanitizer: `python -m tests.gpu.short_runs scheduler|engine`."""

import sys

import numpy as np


def scheduler() -> None:
    """The core with toy steps: evictions, chunks, cancels, refused records, relaunches."""
    from services.gpu_backend.device.driver import Device
    from services.gpu_backend.device.settings import DeviceSettings
    from services.gpu_backend.scheduler.settings import SchedulerSettings
    from tests.gpu.scheduler.rig import Rig, summary_of

    settings = SchedulerSettings(lanes=16, step_tokens=256, pages=40, prefill_chunk=32)
    with Rig(Device(), settings, own=DeviceSettings(deadline_s=60.0), name="short-run") as rig:
        processes = [rig.front_end(0, requests=40, cancel_one_in=400), rig.front_end(1, requests=20, spoil_one_in=5)]
        for process in processes:
            assert summary_of(process)["wrong"] == []
        counters = rig.scheduler.counters()
        print({name: counters[name] for name in ("finished", "relaunches", "preemptions", "refused")})


def engine() -> None:
    """Every kernel of the graphs, driven by the host: GEMMs of both kinds, attention, sampling."""
    import torch

    from services.gpu_backend.engines.cuda import products
    from services.gpu_backend.engines.cuda.engine import CudaGraphEngine
    from services.gpu_backend.engines.cuda.host_driven import HostDrivenGraphEngine
    from services.gpu_backend.engines.cuda.settings import CudaSettings
    from tests.gpu.engine.small_models import Driver, random_model, small_config

    products._ROUNDS, products._CANDIDATES = 1, 2  # choosing is not what is looked at
    shape = small_config(layers=2, hidden=512, intermediate=9216, head_dim=128, heads=4, kv_heads=2)
    settings = CudaSettings(spare_processors=0, decode_sizes=(1, 4, 16), prefill_sizes=(128,))
    graphs = CudaGraphEngine(random_model(shape, torch.bfloat16, "cuda"), "short", settings)
    driven = HostDrivenGraphEngine(graphs, 1024)
    driven.allocate(60, 16, 128)
    driver = Driver(driven, lanes=16, pages=60, lane_pages=3, step_tokens=128, seed=1)
    dice = np.random.default_rng(0)
    for count in (1, 3, 12):
        prompts = [[int(token) for token in dice.integers(0, 4096, 20 + 7 * i)] for i in range(count)]
        answers = driver.generate(prompts, 3, 64)
        assert all(len(answer) == 3 for answer in answers)
    driven.close()
    print("done")


if __name__ == "__main__":
    {"scheduler": scheduler, "engine": engine}[sys.argv[1]]()
