"""A system that trains nothing: enough of a config to be wrong about."""

from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from nlgraft.basics.errors import DataError
from nlgraft.basics.strict_config import StrictConfig
from nlgraft.pipeline.stage import Stage, StageGraph
from nlgraft.study.data.system import Metric
from nlgraft.text.files import InputPath


class Conlang(StrictConfig):
    corpus: Literal["conlang"]
    train: int = Field(default=100, ge=1)
    """Training pairs."""


class Files(StrictConfig):
    corpus: Literal["files"]
    path: InputPath


class Average(StrictConfig):
    kind: Literal["avg"] = "avg"


class Attention(StrictConfig):
    kind: Literal["att", "patt"]
    kd_weight: float = Field(default=0.5, ge=0)
    """Weight of the distillation loss (paper, section 3)."""


class Model(StrictConfig):
    READ_WHEN: ClassVar = {"dropout": ({"merge": ("sum", "gate")},)}
    num_layers: int = Field(default=2, ge=1, le=6)
    """Layers of the encoder."""
    num_fine_layers: int = Field(default=1, ge=0)
    """Layers of the fine encoder."""
    merge: Literal["sum", "average", "gate"] = "sum"
    dropout: float = Field(default=0.1, ge=0, lt=1)
    """Not read with merge average."""

    @model_validator(mode="after")
    def _fits(self):
        if self.num_fine_layers > self.num_layers:
            raise ValueError(f"num_fine_layers {self.num_fine_layers} exceeds num_layers {self.num_layers}")
        return self


class Train(StrictConfig):
    max_steps: int = Field(default=50, ge=1)
    peak_lr: float = Field(default=1e-3, gt=0)
    is_gradual: bool = True
    betas: tuple[float, float] = (0.9, 0.98)
    lr_multipliers: dict[str, float] = Field(default={})


class Config(StrictConfig):
    data: Annotated[Conlang | Files, Field(discriminator="corpus")]
    model: Model = Model(num_layers=3)
    generator: Annotated[Average | Attention, Field(discriminator="kind")] = Average()
    train: Train = Train()
    notes: list[str] = Field(default=[])
    start: str | None = None


METRICS = {
    "dev/bleu": Metric(direction="maximize", unit="BLEU", split="dev"),
    "dev/loss": Metric(direction="minimize", unit="nats", split="dev"),
    "test/bleu": Metric(direction="maximize", unit="BLEU", split="test"),
    "speed": Metric(direction="maximize", unit="sentences/s", split=None, is_time=True),
}
DESCRIPTION = "Trains nothing."
PAPER = "Nobody (2021)"


def stage_graph(config, *, seed, splits):
    if config.data.corpus == "files" and not Path(config.data.path).exists():
        raise DataError(f"{config.data.path}: no such file")
    unread = {"dropout"} if config.model.merge == "average" else None
    corpus = Stage(name="corpus", run="toy_stages:run", config=config.data.model_dump(mode="json"))
    upstream = Stage(
        name="upstream",
        run="toy_stages:run",
        config=config.model.model_dump(mode="json", exclude=unread),
        inputs={"corpus": corpus},
    )
    transfer = Stage(
        name="transfer",
        run="toy_stages:run",
        config=config.generator.model_dump(mode="json"),
        inputs={"upstream": upstream},
    )
    finetune = Stage(
        name="finetune",
        run="toy_stages:run",
        config={
            **config.train.model_dump(mode="json"),
            "notes": config.notes,
            "start": config.start,
        },
        inputs={"transfer": transfer, "corpus": corpus},
        seed=seed,
        workers="train",
    )
    scores = Stage(
        name="scores", run="toy_stages:run", config={"splits": list(splits)}, inputs={"model": finetune}
    )
    return StageGraph(scores)
