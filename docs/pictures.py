"""Makes the pictures of the documentation: ``python -m docs.pictures STORES [SITE]``.

STORES is a folder with the stores of the finished studies below, SITE the folder that ``make docs``
filled; its first page and gallery are pictured to be looked at, into STORES. Needs Chromium.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from mlflow import MlflowClient
from PIL import Image

from nlgraft import api
from nlgraft.tracking.entries import KIND
from tests.pages import browse
from tests.servers import mlflow_server

PICTURES = Path(__file__).with_name("pictures")
SEARCH, FUSION = (
    ("vocabulary_transfer_search", "vipi-search@tiny"),
    ("prlm_fusion_search", "prlm-search@tiny"),
)
STEPS = ("embedding_transfer_fig4", "bridging-fig4-generator-steps@tiny")
"""Folder of a store, and the study in it."""
DEMO = "embedding_transfer_demo"
"""Folder of the demo's store, whose few cells fit on one screen of MLflow."""
DARK = "--blink-settings=preferredColorScheme=0"
_MLFLOW_SIZE = (1440, 760)
_NUM_COLORS = 64


def picture(address: str, out: Path, size: tuple[int, int], *options: str, crop: int | None = None) -> None:
    """Write the top of a page as PNG with few colours; ``crop`` keeps so many pixels of its width."""
    with tempfile.TemporaryDirectory() as profile:
        window = f"--window-size={size[0]},{size[1]}"
        browse(address, Path(profile), f"--screenshot={out}", window, *options)
    image = Image.open(out).convert("RGB").crop((0, 0, crop or size[0], size[1]))
    image.quantize(_NUM_COLORS, dither=Image.Dither.NONE).save(out, optimize=True)
    print(f"{out}: {out.stat().st_size // 1000} kB")


def report(stores: Path, place: tuple[str, str]) -> str:
    """Render a study's report and return its address."""
    store, study = place
    folder = stores / f"report_{store}"
    result = api.load(api.find_study(study, str(stores / store)))
    result.report(folder, formats=["html"])
    return (folder / "report.html").as_uri()


def first_screen(stores: Path) -> None:
    """Picture the demo's table and forest plot, for README."""
    page = Path(report(stores, (DEMO, "demo")).removeprefix("file://"))
    shown = "header > :not(.headline), ul, section:nth-of-type(n + 2), footer {display: none !important}"
    page.write_text(page.read_text("utf-8").replace("</head>", f"<style>{shown}</style></head>"), "utf-8")
    picture(page.as_uri(), PICTURES / "demo.png", (1200, 900))


def in_a_frame(address: str, width: int, height: int, folder: Path) -> str:
    """Return a page that frames another one as narrow as a phone, which Chromium's window is never."""
    page = folder / "phone.html"
    frame = f'<iframe src="{address}" width="{width}" height="{height}" style="border:0"></iframe>'
    page.write_text(f'<!doctype html><body style="margin:0">{frame}', "utf-8")
    return page.as_uri()


def mlflow_pictures(stores: Path) -> None:
    """Picture the list of runs, the view of cells and the comparison of cells."""
    uri = f"sqlite:///{stores / DEMO / 'mlflow.db'}"
    cells = MlflowClient(uri).search_runs(["1"], f"tags.`{KIND}` = 'cell'")
    chosen = json.dumps([run.info.run_id for run in cells], separators=(",", ":"))
    with mlflow_server(uri, stores) as address:
        pages = {
            "runs": "experiments/1/runs?",
            "cells": "experiments/1/runs?viewStateShareKey=cells&",
            "compare": f'compare-runs?runs={chosen}&experiments=["1"]&',
        }
        for name, page in pages.items():
            # As the address that a run prints, in MLflow's mode for trainings.
            shown = f"{address}/#/{page}workflowType=machine_learning"
            picture(shown, PICTURES / f"mlflow_{name}.png", _MLFLOW_SIZE)


def main(stores: Path, site: Path | None = None) -> None:
    """Make all pictures."""
    PICTURES.mkdir(exist_ok=True)
    first_screen(stores)
    picture(report(stores, SEARCH), PICTURES / "report_light.png", (1200, 1500))
    picture(report(stores, FUSION), PICTURES / "report_dark.png", (1200, 1500), DARK)
    framed = in_a_frame(report(stores, STEPS), 390, 1200, stores)
    picture(framed, PICTURES / "report_phone.png", (520, 1200), "--allow-file-access-from-files", crop=390)
    mlflow_pictures(stores)
    for name in ("index", "gallery") if site else ():
        picture((site / f"{name}.html").as_uri(), stores / f"docs_{name}.png", (1280, 900))


if __name__ == "__main__":
    main(*(Path(folder).absolute() for folder in sys.argv[1:]))
