"""Matrix products of many rows by whichever of cuBLAS's kernels is quickest, found by trying each shape once.

cuBLAS expects to have the whole GPU. A kernel that fills it exactly takes up to a fifth longer once the resident
scheduler keeps a multiprocessor, while another one loses nothing, and a third never ends; so they are tried with one
taken.
"""

import functools
import logging
import math
import statistics
from collections.abc import Callable, Iterable

import torch

from services.common import paths
from services.gpu_backend.engines.cuda.cublas_lt import Algorithm, Product, version
from services.gpu_backend.engines.cuda.lodger import Lodger
from services.gpu_backend.engines.cuda.product_choices import ProductChoices, Shape

log = logging.getLogger(__name__)

Way = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]
"""x[rows, K], weight[N, K], out[rows, N]: out = x weight^T, or out += x weight^T."""

_LAUNCHES, _ROUNDS, _CANDIDATES = 6, 3, 8
_FINALISTS = 4
"""Of the ways of a shape, so many are timed with care: those that a single look at each found to be quickest."""
_WORTH_IT = 0.98
"""Of the time of cuBLAS's own choice: another kernel must be this much quicker."""
_LONGEST_MS = 500
"""That a multiprocessor is taken while a way is timed, many times what that takes. What waits for it is not used."""
_HEAD_START_CYCLES = 400_000
"""The GPU waits so long while the host queues a round; about 0.2 ms."""


def multiply(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> None:
    torch.mm(x, weight.t(), out=out)


def add_product(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> None:
    out.addmm_(x, weight.t())


class Products:
    """Products with these weights. A shape's first one tries all ways, unless it is known from another run; that
    overwrites `out`."""

    def __init__(self, weights: Iterable[torch.Tensor], device: torch.device, spare_processors: int) -> None:
        """weights: enough of each shape that a few of them don't fit in the GPU's cache."""
        self._device, self._spare = device, spare_processors
        self._lodger: Lodger | None = None
        self._weights: dict[tuple[int, ...], list[torch.Tensor]] = {}
        for weight in weights:
            self._weights.setdefault(tuple(weight.shape), []).append(weight)
        self._ways: dict[Shape, Way] = {}
        self._choices: ProductChoices | None = None

    def run(self, x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor, *, added: bool) -> None:
        """On the current stream. The first of a shape waits for the device; it can't be captured."""
        shape = Shape(x.shape[0], weight.shape[0], weight.shape[1], added)
        if shape not in self._ways:
            self._ways[shape] = self._choose(shape, x, weight, out)
        self._ways[shape](x, weight, out)

    def _choose(self, shape: Shape, x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> Way:
        plain = add_product if shape.added else multiply
        if weight.dtype != torch.bfloat16:
            return plain
        product = Product(shape.rows, shape.n, shape.k, weight.dtype, added=shape.added)
        if self._choices is None:
            name = torch.cuda.get_device_name(self._device)
            self._choices = ProductChoices(paths.kernels_dir(), (name, self._processors, version(), self._spare))
        known = self._choices.find(shape)
        if known is None:
            best = self._try(product, plain, x, weight, out)
            self._choices.keep(shape, best)
        else:
            best = known if isinstance(known, Algorithm) else None
        return plain if best is None else functools.partial(product.run, best)

    @property
    def _processors(self) -> int:
        return torch.cuda.get_device_properties(self._device).multi_processor_count

    def _try(
        self, product: Product, plain: Way, x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor
    ) -> Algorithm | None:
        """The quickest; None: `plain`."""
        targets = [0] if self._spare == 0 else [0, self._processors - self._spare, self._processors - 4]
        found = {each.words: each for target in targets for each in product.algorithms(_CANDIDATES, target)}
        algorithms = list(found.values())
        ways: list[Way] = [plain, *(functools.partial(product.run, each) for each in algorithms)]
        weights = (self._weights[tuple(weight.shape)] * _LAUNCHES)[:_LAUNCHES]
        x = torch.randn_like(x)  # zeros would cost less power, and so less time
        torch.cuda._sleep(1)
        for way in ways:  # loads the kernels, which waits for the whole device
            way(x, weight, out)
        torch.cuda.synchronize(self._device)
        rough = [self._ms(way, x, weights[:2], out, 1) for way in ways]
        quickest = sorted(range(1, len(ways)), key=rough.__getitem__)[:_FINALISTS]
        times = {i: self._ms(ways[i], x, weights, out, _ROUNDS) for i in (0, *quickest) if rough[i] < math.inf}
        best = min(times, key=times.__getitem__, default=0)
        if best == 0 or times[best] > _WORTH_IT * times.get(0, math.inf):
            return None
        return algorithms[best - 1]

    def _ms(self, way: Way, x: torch.Tensor, weights: list[torch.Tensor], out: torch.Tensor, rounds: int) -> float:
        """As `_time`, with a multiprocessor taken if there is one to spare; inf if the way waited for it."""
        if not self._spare:
            return _time(way, x, weights, out, rounds)
        if self._lodger is None:
            self._lodger = Lodger(self._device, _LONGEST_MS)
        with self._lodger:
            found = _time(way, x, weights, out, rounds)
        if not self._lodger.overstayed:
            return found
        log.info("a kernel waits for the whole GPU: not used", extra={"shape": [*out.shape, x.shape[1]]})
        return math.inf


def _time(way: Way, x: torch.Tensor, weights: list[torch.Tensor], out: torch.Tensor, rounds: int) -> float:
    """Median milliseconds of a launch with each of `weights`, so that none is in the cache. Waits for the stream."""
    stream = torch.cuda.current_stream()
    spans = []
    for _ in range(rounds):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(_HEAD_START_CYCLES)
        begin.record(stream)
        for weight in weights:
            way(x, weight, out)
        end.record(stream)
        stream.synchronize()
        spans.append(begin.elapsed_time(end))
    return statistics.median(spans)
