"""Every architecture with too few pages: evicted requests come back, and all tokens are transformers'."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from services.fabric._ring import Finish
from services.fabric.ring import RingGeometry, RingOwner
from services.gpu_backend.engines.torch_engine import TorchEngine, TorchSettings
from services.gpu_backend.models.registry import load
from services.gpu_backend.models.variants import VARIANTS
from services.gpu_backend.scheduler.host import HostScheduler
from services.gpu_backend.scheduler.settings import SchedulerSettings
from tests.gpu_backend.scheduler.test_host import ROOM, SLOTS, FrontEnd
from tests.gpu_backend.scheduler.world import HeapRegion

REQUESTS, PROMPT, ANSWER, VOCAB, CONTEXT = 6, 10, 130, 200, 512
SETTINGS = SchedulerSettings(lanes=REQUESTS, step_tokens=64, pages=8)  # 18 would hold them all


@pytest.mark.parametrize("architecture", VARIANTS)
def test_tokens_equal_those_of_transformers(architecture: str, make_model: Any, tmp_path: Path) -> None:
    model = make_model(architecture)
    model.save_pretrained(tmp_path)
    engine = TorchEngine(load(tmp_path), TorchSettings(threads=1))
    engine.allocate(SETTINGS.pages, SETTINGS.lanes, SETTINGS.step_tokens)
    geometry = RingGeometry(SLOTS, SLOTS * ROOM, SLOTS * ROOM)
    region: Any = HeapRegion(geometry.size_bytes)
    ring = RingOwner(region, geometry, epoch=1, max_context=CONTEXT, vocab_size=VOCAB, page_count=SETTINGS.pages)
    ring.grant(ring.share(0))
    scheduler = HostScheduler(ring.buffer, engine, SETTINGS, max_context=CONTEXT)
    front_end = FrontEnd(ring)
    prompts = np.random.default_rng(8).integers(0, VOCAB, (REQUESTS, PROMPT))
    words = ring.buffer[geometry.fields()["prompt_offset"] :][: 4 * SLOTS * ROOM].view(np.uint32)
    for slot, prompt in enumerate(prompts):  # all are there when it starts: none is over before the last has come
        words[slot * ROOM :][:PROMPT] = prompt
        front_end.submit(slot, ANSWER)
    scheduler.start()
    try:
        assert [front_end.finish(slot) for slot in range(REQUESTS)] == [Finish.LENGTH] * REQUESTS
        assert scheduler.counters()["preemptions"] > 0
    finally:
        scheduler.stop(30)
    for slot, prompt in enumerate(prompts.tolist()):
        answer = front_end.tokens[slot * ROOM :][:ANSWER].tolist()
        with torch.inference_mode():
            logits = model(torch.tensor([[*prompt, *answer]])).logits[0, PROMPT - 1 : -1]
        assert logits.argmax(-1).tolist() == answer
