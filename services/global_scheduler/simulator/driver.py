"""Runs a workload on a simulated cluster: the event core moves time, the live policy places (D9-D12)."""

from collections.abc import Callable
from dataclasses import dataclass

from services.global_scheduler._simulator import Simulation
from services.global_scheduler.policy.chunk import Quota
from services.global_scheduler.policy.registry import make_policy
from services.global_scheduler.policy.state import Engine, Load, Placement, Policy, Request, Role
from services.global_scheduler.simulator.chunks import chunk_chooser
from services.global_scheduler.simulator.cluster import Machines
from services.global_scheduler.simulator.held import HeldContexts
from services.global_scheduler.simulator.outcome import Outcome, outcome_of
from services.global_scheduler.simulator.systems import System
from services.global_scheduler.simulator.workload import BLOCK_TOKENS, Workload

Progress = Callable[[float, int], None]
"""Told simulated seconds and turns done, now and then."""


QUOTA = Quota(attention_s=0.3, tokens=16_384)


@dataclass(frozen=True)
class Timing:
    """How often the scheduler acts, in simulated seconds."""

    round_s: float = 0.02  # placement rounds, while something waits
    report_s: float = 0.1  # leaders' reports (D9)
    quota: Quota = QUOTA  # D13: of an engine's prefill step


TIMING = Timing()


def simulate(
    cluster: Machines,
    system: System,
    workload: Workload,
    timing: Timing = TIMING,
    progress: Progress | None = None,
    until_s: float = float("inf"),
) -> Outcome:
    """Runs until every agent is through, or `until_s`. The same arguments give the same outcome, to the bit.

    Raises ConservationError if at the end of a whole run anything is missing or left over.
    """
    config = cluster.config()
    config.layerwise, config.free_io = system.layerwise, system.free_io
    core = Simulation(config, workload.trace(), chunk_chooser(config.prefill, timing.quota))
    for start_s, trajectory in zip(workload.start_s.tolist(), workload.trajectory.tolist(), strict=True):
        core.add_agent(start_s, trajectory)
    held = HeldContexts(int(system.held_bytes / config.kv_bytes))
    scheduler = _Scheduler(cluster, core, make_policy(system.policy, system.parameters), held)
    report_at, round_count = 0.0, 0
    while core.unfinished and core.now < until_s:
        # Rounds are on a fixed grid; those at which nothing waits are passed over.
        wake = core.now if scheduler.waiting else core.next()
        round_count = max(round_count + 1, int(wake / timing.round_s) + 1)
        core.advance(min(round_count * timing.round_s, until_s))
        if core.now >= report_at:
            scheduler.report()
            report_at = core.now + timing.report_s
        scheduler.round()
        if progress and round_count % 256 == 0:
            progress(core.now, core.turns_done)
    if not core.unfinished:
        core.advance(float("inf"))
    return outcome_of(cluster, system, workload, core)


class _Scheduler:
    """The live policy's shell: engine names to numbers, as the gRPC service does with leaders' reports."""

    def __init__(self, cluster: Machines, core: Simulation, policy: Policy, held: HeldContexts) -> None:
        self._core = core
        self._held = held
        self._asked: dict[str, tuple[int, int]] = {}  # of requests that wait: the agent, and tokens of its next context
        self._policy = policy
        self._model = cluster.model_name
        self._names = [f"e{number:05}" for number in range(cluster.nodes * cluster.engines_per_node)]
        self._numbers = {name: number for number, name in enumerate(self._names)}
        config = cluster.config()
        per_node = cluster.engines_per_node
        for number, name in enumerate(self._names):
            node = number // per_node
            role = Role.PREFILL if node < cluster.prefill_nodes else Role.DECODE
            tokens = config.prefill_kv_tokens if role is Role.PREFILL else config.decode_kv_tokens
            pages = tokens // BLOCK_TOKENS
            engine = Engine(name, f"n{node}", f"n{node}", role, self._model, BLOCK_TOKENS, pages, 1 << 20)
            policy.add(engine, Load(0, 0, 0, pages))

    @property
    def waiting(self) -> bool:
        return self._policy.waiting > 0

    def report(self) -> None:
        report, names = self._policy.report, self._names
        for engine, requests, tokens, reads, free in self._core.take_loads():
            report(names[engine], Load(requests, tokens, reads, max(free, 0) // BLOCK_TOKENS))

    def round(self) -> None:
        submit, place, numbers, model = self._policy.submit, self._core.place, self._numbers, self._model
        for request, agent, prompt, cached, output in self._core.take_arrivals():
            held = self._held.of(agent)
            self._asked[str(request)] = agent, (prompt + output - 1) // BLOCK_TOKENS * BLOCK_TOKENS
            submit(Request(str(request), model, prompt, cached, output, held=held))
        for decision in self._policy.decide():
            if not isinstance(decision, Placement):
                raise ValueError(f"the cluster can't serve this workload: {decision.message}")
            agent, context = self._asked.pop(decision.request_id)
            # It may have waited long, and what was held when it came may be gone.
            reused = min(decision.reused_tokens, dict(self._held.of(agent)).get(decision.decode, 0))
            self._held.decoded(decision.decode, agent, context)
            place(
                int(decision.request_id),
                numbers[decision.prefill],
                numbers[decision.decode],
                decision.prefill_read_tokens,
                far_held=reused,
            )
