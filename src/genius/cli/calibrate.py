"""`genius calibrate`: fits how sure a model's answers are, on labelled queries."""

from __future__ import annotations

from typing import Annotated

import typer

from genius.cli.evaluate import (
    DEVICE,
    LAYOUT,
    MODEL,
    Cache,
    Device,
    Layout,
    ModelName,
    Root,
    log,
    open_data,
    progress,
    workspace_of,
)


def calibrate(
    data: Root,
    model: ModelName = MODEL,
    split: Annotated[str, typer.Option(help="Split of the queries.")] = "val",
    cache: Cache = None,
    device: Device = DEVICE,
    layout: Layout = LAYOUT,
) -> None:
    """Fit a model's confidence on labelled queries. It is written to model.toml."""
    from genius.evaluate.calibration import fit_calibration, observe
    from genius.evaluate.embeddings import Embedder
    from genius.model import Model, model_folder
    from genius.model_toml import set_table

    folder = model_folder(model)
    dataset = open_data(data, layout)
    workspace = workspace_of(cache, device)
    loaded = Model.load(model, device=workspace.device)
    with progress() as show:
        observed = observe(dataset, loaded, Embedder(loaded, workspace.cache, show), split)
    for name, several in observed.items():
        fitted = fit_calibration(several)
        set_table(folder, f"confidence_{name}", fitted.table())
        queries = sum(len(set(one.query.tolist())) for one in several)
        log(f"{folder}: confidence by {name} fitted on {queries} queries of {split}")
