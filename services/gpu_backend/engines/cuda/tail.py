"""The end of a step on the device: sampling.cu."""

import torch

from services.gpu_backend.engines.cuda.memory_views import StepTensors
from services.gpu_backend.engines.cuda.nvrtc import KernelModule
from services.gpu_backend.engines.cuda.program import Tail
from services.gpu_backend.models.llama import Llama

_SAMPLE_THREADS = 1024


def device_tail(model: Llama) -> Tail:
    module = KernelModule("sampling.cu")
    kernel = "sample_bfloat16" if model.dtype == torch.bfloat16 else "sample_float32"
    vocab = model.config.vocab

    def sample(logits: torch.Tensor, step: StepTensors) -> None:
        arguments = (logits, step.sequences, step.sequence_count, vocab, step.out_tokens, step.error)
        module.launch(kernel, len(logits), _SAMPLE_THREADS, arguments)

    def finish(step: StepTensors) -> None:
        module.launch("finish_step", 1, 1, (step.step, step.done_step))

    return Tail(sample, finish)
