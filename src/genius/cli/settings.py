"""`genius.toml`: defaults of the options of each verb, where the command line does not say otherwise.

    [search]
    in = "my-index"
    k = 24
    at-least = 0.3

It is read from $GENIUS_CONFIG, else from the current folder, else from the user's configuration folder.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from genius.errors import BadInput

NAME = "genius.toml"


def settings_file() -> Path | None:
    """The file that counts, if there is one."""
    named = os.environ.get("GENIUS_CONFIG")
    if named is not None:
        return Path(named) if named else None
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.expandvars("$HOME/.config")
    places = (Path(NAME), Path(home) / "genius" / NAME)
    return next((place for place in places if place.is_file()), None)


def option_defaults(file: Path | None, verbs: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The defaults in `file` for `verbs` (commands by name), as click takes them; raises BadInput."""
    if file is None:
        return {}
    try:
        tables = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadInput(f"{file} cannot be read: {error}") from None
    defaults = {}
    for verb, table in tables.items():
        command = verbs.get(verb)
        if command is None or not isinstance(table, dict):
            raise BadInput(f"{file}: [{verb}] is no verb: use {', '.join(sorted(verbs))}")
        names = {
            name.lstrip("-"): option.name
            for option in command.params
            if option.param_type_name == "option"
            for name in option.opts
        }
        unknown = sorted(table.keys() - names.keys())
        if unknown:
            allowed = ", ".join(sorted(names))
            raise BadInput(f"{file}: [{verb}] has no option {unknown[0]!r}: use {allowed}")
        defaults[verb] = {str(names[name]): value for name, value in table.items()}
    return defaults
