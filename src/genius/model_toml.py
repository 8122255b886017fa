"""`model.toml` describes a model folder: a table each for the encoder, quantizer, decoder and search."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from genius.errors import ModelMismatch
from genius.files import storage_errors, write_file

NAME = "model.toml"


def invalid(file: Path, error: Exception) -> ModelMismatch:
    """The error for a model.toml that cannot be read or lacks a value."""
    return ModelMismatch(
        f"{file} is not a valid model.toml ({error}): remove it, then train or convert again"
    )


def read_model_toml(folder: Path) -> dict[str, dict[str, Any]]:
    """The tables of `folder`/model.toml; empty if there is no such file yet."""
    file = folder / NAME
    try:
        return tomllib.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise invalid(file, error) from None


def write_model_toml(folder: Path, tables: Mapping[str, Mapping[str, Any]]) -> None:
    """Write tables of plain values; TOML writes numbers, strings, booleans and lists of them as JSON does."""
    lines = []
    for name, table in tables.items():
        lines += [f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in table.items()), ""]
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    write_file(folder / NAME, ["\n".join(lines).encode()])


def set_table(folder: Path, name: str, table: Mapping[str, Any]) -> None:
    """Replace or add one table of `folder`/model.toml."""
    write_model_toml(folder, {**read_model_toml(folder), name: table})
