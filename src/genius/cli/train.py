"""`genius train`: a stage of a recipe, or all of them."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class TrainingStage(StrEnum):
    """What can be trained."""

    ENCODER = "encoder"
    QUANTIZER = "quantizer"
    DECODER = "decoder"
    ALL = "all"


def train(
    stage: Annotated[
        TrainingStage, typer.Argument(help="The stage to train; `all` runs every stage of the recipe.")
    ],
    recipe: Annotated[
        str, typer.Argument(help="A recipe in TOML, or the name of a shipped one: mini, bench, mbeir, …")
    ],
    to: Annotated[
        Path | None, typer.Option(help="Folder of the run (default: runs/NAME of the recipe).")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="Change a value of the recipe: a.b=value. May be repeated."),
    ] = None,
) -> None:
    """Train one or all stages of a recipe. An interrupted run resumes."""
    from genius.config import load_recipe

    settings = load_recipe(recipe, set_ or ())
    folder = to or Path("runs") / settings.name

    from genius.pipeline.stages import train_stages

    train_stages(settings, stage.value, folder)
