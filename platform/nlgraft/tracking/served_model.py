"""The code that MLflow runs to serve a model of nlgraft; each model contains a copy of this file."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pandas as pd
from mlflow.models import set_model
from mlflow.pyfunc.model import PythonModel, PythonModelContext


class ServedModel(PythonModel):
    """Predicts text from text by the predictor that the artifact names in ``predictor.json``."""

    def load_context(self, context: PythonModelContext) -> None:
        """Load the predictor from the artifact directory."""
        directory = Path(context.artifacts["trained"])
        module, _, function = json.loads((directory / "predictor.json").read_text("utf-8"))[
            "predictor"
        ].partition(":")
        self._predict = getattr(importlib.import_module(module), function)(directory)

    def predict(  # pyright: ignore[reportIncompatibleMethodOverride]: MLflow declares no result
        self,
        context: PythonModelContext,
        model_input: pd.DataFrame,
        params: dict[str, Any] | None = None,
    ) -> list[str]:
        """Predict one text per row; the columns are the inputs in the order of the signature."""
        columns = [model_input[column].astype(str).tolist() for column in model_input]
        return list(self._predict(*columns))


set_model(ServedModel())
