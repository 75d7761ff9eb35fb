"""The engine of captured graphs: Llama and its variants in bfloat16 or float32 on one GPU (B8-B10)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from services.gpu_backend.engine import PAGE_TOKENS, EngineError, ModelGeometry, StepKind
from services.gpu_backend.engines.cuda.additions import Additions
from services.gpu_backend.engines.cuda.attention import PagedAttention, most_splits, rotation_table
from services.gpu_backend.engines.cuda.buffers import Buffers
from services.gpu_backend.engines.cuda.contract import StepMemory
from services.gpu_backend.engines.cuda.gemms import Gemms, LibraryGemms, SkinnyGemms
from services.gpu_backend.engines.cuda.memory_views import tensors_of
from services.gpu_backend.engines.cuda.nvrtc import KernelModule
from services.gpu_backend.engines.cuda.own_memory import OwnMemory
from services.gpu_backend.engines.cuda.products import Products
from services.gpu_backend.engines.cuda.program import Gate, StepProgram
from services.gpu_backend.engines.cuda.settings import CudaSettings, decode_sizes, prefill_sizes
from services.gpu_backend.engines.cuda.tail import device_tail
from services.gpu_backend.models.llama import Llama
from services.gpu_backend.models.model import Model


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """Bytes of device memory, by what holds them."""

    weights: int
    kv_pages: int
    buffers: int
    graphs: int
    graph_count: int


class CudaGraphEngine:
    """A `GraphEngine` (contract.py). It owns KV pages, buffers and graphs; the model may be shared."""

    def __init__(self, model: Model, identity: str, settings: CudaSettings | None = None) -> None:
        """identity: of the weights, as LoadedModel.identity. Raises EngineError for what can't be run."""
        if not isinstance(model, Llama):
            raise EngineError(f"the CUDA graph engine runs models of Llama's kind; this is a {type(model).__name__}")
        _check(model)
        config = model.config
        self.settings = settings or CudaSettings()
        self._model = model
        self._device = model.device
        self._geometry = ModelGeometry(
            layers=config.layers,
            heads=config.heads,
            kv_heads=config.kv_heads,
            head_dim=config.head_dim,
            vocab=config.vocab,
            max_context=config.max_context,
            dtype="bfloat16" if model.dtype == torch.bfloat16 else "float32",
            identity=identity,
        )
        self._stream = torch.cuda.Stream(self._device)
        self._pool_handle = torch.cuda.graph_pool_handle()
        self._graphs: dict[tuple[int, StepKind, int], torch.cuda.CUDAGraph] = {}
        self._graph_bytes = 0
        self._kv = torch.empty(0, device=self._device)
        self._buffers: Buffers | None = None
        self._program: StepProgram | None = None
        self._lanes = self._step_tokens = 0

    @property
    def geometry(self) -> ModelGeometry:
        return self._geometry

    @property
    def kv_pool(self) -> torch.Tensor:
        """[pages, layers, 2, 64, kv_heads, head_dim] in device memory. Empty before `allocate`."""
        return self._kv

    @property
    def buffers(self) -> Buffers:
        """What a step computed last, for tests: logits are rows of sequences (decode)."""
        assert self._buffers is not None, "allocate comes first"
        return self._buffers

    def graph_sizes(self, kind: StepKind) -> Sequence[int]:
        if kind is StepKind.DECODE:
            return self.settings.decode_sizes or decode_sizes(self._lanes)
        return self.settings.prefill_sizes or prefill_sizes(self._step_tokens)

    def allocate(self, pages: int, lanes: int, step_tokens: int, gate: Gate | None = None) -> None:
        """gate: for prefill steps that wait for layers, and tell of them."""
        if self._program is not None:
            raise EngineError("the engine's memory is allocated already")
        self._lanes, self._step_tokens = lanes, step_tokens
        config = self._model.config
        programs = torch.cuda.get_device_properties(self._device).multi_processor_count
        programs *= self.settings.programs_per_processor
        sequences = {*self.graph_sizes(StepKind.DECODE), *(min(n, lanes) for n in self.graph_sizes(StepKind.PREFILL))}
        splits = max(n * most_splits(n, config.kv_heads, programs) for n in sequences)
        try:
            self._kv = torch.zeros((pages, *self._geometry.block_shape), dtype=self._model.dtype, device=self._device)
            self._buffers = Buffers.allocate(
                config, self._model.dtype, self._device, rows=max(step_tokens, lanes), lanes=lanes, splits=splits
            )
            rotations = rotation_table(config, self._model.frequencies)
        except torch.cuda.OutOfMemoryError:
            self._kv, self._buffers = torch.empty(0, device=self._device), None
            free, total = torch.cuda.mem_get_info(self._device)
            block = self._geometry.block_bytes
            raise EngineError(
                f"{pages} KV pages of {block} bytes are {pages * block} bytes; of the GPU's {total} bytes {free} are "
                f"free, and a step of {step_tokens} tokens takes its share: less than {free // block} pages fit"
            ) from None
        attention = PagedAttention(
            config, self._kv, rotations, self._buffers, programs, self.settings.overlap_launches, self.settings.singles
        )
        additions = Additions(config, self.settings.overlap_launches)
        gemms, tail = self._gemms(self._buffers), device_tail(self._model)
        self._program = StepProgram(self._model, self._buffers, attention, additions, gemms, tail, gate)

    def run(self, kind: StepKind, size: int, memory: StepMemory) -> None:
        """The kernels of a step, launched one by one on the engine's stream: what `capture` records."""
        assert self._program is not None, "allocate comes first"
        with torch.no_grad(), torch.cuda.stream(self._stream):
            self._program.run(kind, size, tensors_of(memory, self._device))

    def capture(self, kind: StepKind, size: int, memory: StepMemory) -> int:
        graph = self.capture_graph(kind, size, memory)
        return int(graph.raw_cuda_graph())

    def capture_graph(self, kind: StepKind, size: int, memory: StepMemory) -> torch.cuda.CUDAGraph:
        """As `capture`; the graph as torch knows it, not yet instantiated."""
        assert self._program is not None, "allocate comes first"
        name = f"{kind.name.lower()} graph of size {size}"
        free_before, _ = torch.cuda.mem_get_info(self._device)
        try:
            # Once without recording, on a step of padding: kernels are compiled and loaded, cuBLAS gets its workspace.
            with OwnMemory.like(memory, self._device) as blank:
                self.run(kind, size, blank.memory)
                self._stream.synchronize()
            graph = torch.cuda.CUDAGraph(keep_graph=True)
            step = tensors_of(memory, self._device)
            with torch.no_grad(), torch.cuda.graph(graph, pool=self._pool_handle, stream=self._stream):
                self._program.run(kind, size, step)
        except torch.cuda.OutOfMemoryError as error:
            raise EngineError(f"no memory to capture the {name}; {free_before} bytes were free: {error}") from error
        except RuntimeError as error:
            raise EngineError(f"the {name} can't be captured; {free_before} bytes were free: {error}") from error
        self._graphs[memory.address, kind, size] = graph
        self._graph_bytes += max(0, free_before - torch.cuda.mem_get_info(self._device)[0])
        return graph

    def memory_report(self) -> MemoryReport:
        weights = [self._model.embedding, self._model.norm, self._model.head]
        for layer in self._model.layers:
            weights += layer.tensors()
        return MemoryReport(
            weights=sum({each.data_ptr(): each.nbytes for each in weights}.values()),
            kv_pages=self._kv.nbytes,
            buffers=self._buffers.size_bytes if self._buffers else 0,
            graphs=self._graph_bytes,
            graph_count=len(self._graphs),
        )

    def close(self) -> None:
        self._graphs.clear()
        self._program = self._buffers = None
        self._kv = torch.empty(0, device=self._device)

    def _gemms(self, buffers: Buffers) -> Callable[[int], Gemms]:
        epsilon = self._model.config.rms_epsilon
        overlap = self.settings.overlap_launches
        weights = [(self._model.head, True)]
        for each in self._model.layers:
            weights += [(each.qkv, True), (each.output, False), (each.gate_up, True), (each.down, False)]
        products = Products((weight for weight, _ in weights), self._device, self.settings.spare_processors)
        library = LibraryGemms(epsilon, buffers, products, overlap)
        few = self.settings.skinny_rows
        if few == 0 or not all(SkinnyGemms.fits(*each) for each in weights):
            return lambda rows: library
        processors = torch.cuda.get_device_properties(self._device).multi_processor_count
        processors = max(1, processors - self.settings.spare_processors)
        skinny = SkinnyGemms(epsilon, KernelModule("skinny.cu"), [each for each, _ in weights], processors, overlap)
        return lambda rows: skinny if rows <= few else library


def _check(model: Llama) -> None:
    config = model.config
    if model.device.type != "cuda":
        raise EngineError(f"this engine runs on a GPU; the model is on {model.device}")
    capability = torch.cuda.get_device_capability(model.device)
    if capability < (9, 0):
        raise EngineError(
            f"{torch.cuda.get_device_name(model.device)} has compute capability {capability[0]}.{capability[1]}; "
            "graphs launched from the device by a resident scheduler need 9.0 or more"
        )
    if model.dtype not in (torch.bfloat16, torch.float32):
        raise EngineError(f"dtype {model.dtype} is neither bfloat16 nor float32")
    if config.head_dim < 2 * 16 or config.head_dim & (config.head_dim - 1):
        raise EngineError(f"head_dim is {config.head_dim}; the attention kernels need a power of two, at least 32")
    assert PAGE_TOKENS == 64, "the kernels are written for pages of 64 tokens"
