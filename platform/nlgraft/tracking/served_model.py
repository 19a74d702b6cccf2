"""The code that MLflow runs to serve a model of nlgraft; a copy of this file lies inside the model."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pandas as pd
from mlflow.models import set_model
from mlflow.pyfunc.model import PythonModel, PythonModelContext


class ServedModel(PythonModel):
    """Text in, text out, by the predictor that the artifact directory names."""

    def load_context(self, context: PythonModelContext) -> None:
        """Open the directory.

        Args:
            context: Where MLflow has put the directory.
        """
        directory = Path(context.artifacts["trained"])
        module, _, function = json.loads((directory / "predictor.json").read_text(encoding="utf-8"))[
            "predictor"
        ].partition(":")
        self._predict = getattr(importlib.import_module(module), function)(directory)

    def predict(  # pyright: ignore[reportIncompatibleMethodOverride]: MLflow declares no result
        self,
        context: PythonModelContext,
        model_input: pd.DataFrame,
        params: dict[str, Any] | None = None,
    ) -> list[str]:
        """Predict one text per row.

        Args:
            context: Not needed; the directory is open.
            model_input: One text column per input, in the order of the signature.
            params: Not used; MLflow passes it.

        Returns:
            The predicted texts.
        """
        return list(self._predict(*(model_input[column].astype(str).tolist() for column in model_input)))


set_model(ServedModel())
