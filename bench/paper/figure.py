"""One figure: the paper's and ours."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    what: str
    paper: float | None  # None: the paper gives none
    ours: float
    unit: str = ""
    note: str = ""

    @property
    def error(self) -> float | None:
        """Relative to the paper's."""
        return None if self.paper is None else self.ours / self.paper - 1
