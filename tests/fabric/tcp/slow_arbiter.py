"""The arbiter's rule, said slowly: everything is computed anew from all that has happened."""

from dataclasses import dataclass, field

from services.fabric._tcp import Traffic


@dataclass
class SlowArbiter:
    """Takes what Arbiter takes; `window` is told to it, and stays."""

    model_weight: int
    kv_weight: int
    asked: list[tuple[Traffic, int]] = field(default_factory=list)
    granted: list[tuple[Traffic, int, bool]] = field(default_factory=list)  # class, bytes, whether KV waited then
    ended: dict[Traffic, int] = field(default_factory=lambda: dict.fromkeys(Traffic, 0))

    def ask(self, traffic: Traffic, count: int) -> None:
        self.asked.append((traffic, count))

    def grant(self, window: int) -> Traffic | None:
        kv, model = self._first(Traffic.KV), self._first(Traffic.MODEL)
        if kv is not None and self._earned(kv, window) and self._fits(kv, self.under_way(Traffic.KV), window):
            return self._start(Traffic.KV, kv)
        if model is not None:
            return self._start(Traffic.MODEL, model)
        if kv is not None and self._fits(kv, self.under_way(Traffic.KV) + self.under_way(Traffic.MODEL), window):
            return self._start(Traffic.KV, kv)
        return None

    def done(self, traffic: Traffic, count: int) -> None:
        self.ended[traffic] += count

    def under_way(self, traffic: Traffic) -> int:
        return sum(count for kind, count, _ in self.granted if kind is traffic) - self.ended[traffic]

    def _first(self, traffic: Traffic) -> int | None:
        sizes = [count for kind, count in self.asked if kind is traffic]
        gone = sum(kind is traffic for kind, _, _ in self.granted)
        return sizes[gone] if gone < len(sizes) else None

    def _earned(self, first: int, window: int) -> bool:
        """Replays the deficit counter since KV last had nothing waiting."""
        credit, heads = 0, [count for kind, count in self.asked if kind is Traffic.KV]
        at = 0
        for kind, count, kv_waits in self.granted:
            if kind is Traffic.MODEL:
                most = max(window, heads[at] if kv_waits else 0) * self.model_weight
                credit = min(credit + count * self.kv_weight, most) if kv_waits else 0
            else:
                enough = credit >= count * self.model_weight
                at += 1
                credit = credit - count * self.model_weight if enough else credit
                credit = credit if kv_waits else 0
        return credit >= first * self.model_weight

    @staticmethod
    def _fits(first: int, others: int, window: int) -> bool:
        return not others or others + first <= window

    def _start(self, traffic: Traffic, count: int) -> Traffic:
        gone = sum(kind is Traffic.KV for kind, _, _ in self.granted) + (traffic is Traffic.KV)
        waits = sum(kind is Traffic.KV for kind, _ in self.asked) > gone
        self.granted.append((traffic, count, waits))
        return traffic
