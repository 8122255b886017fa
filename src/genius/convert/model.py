"""A whole model out of published files: encoder, quantizer and decoder in one folder."""

from __future__ import annotations

from pathlib import Path

from genius.convert.decoder import convert_decoder
from genius.convert.encoders import convert_clip_sf, refuse_full
from genius.convert.quantizer import convert_quantizer
from genius.encode.base import ENCODERS
from genius.encode.clip import EXAMPLE
from genius.encode.hub import CONFIGS, find_folder, pinned_name
from genius.encode.pretrained import load_config
from genius.errors import BadInput
from genius.files import write_folder
from genius.model import Model
from genius.model_toml import set_table

SEARCH = {"method": "generate", "beam": 50}  # paper 4.4


def convert_model(encoder: str, quantizer: str, decoder: str, to: Path, tokenizer: str | None = None) -> None:
    """The model made of the published files of its parts, in the new folder `to`; it has been loaded once.

    `encoder` is UniIR's CLIP-SF file, which is converted into the folder too, or the folder or hub name of
    another encoder, which stays where it is.
    """
    refuse_full(to)
    with write_folder(to) as new:
        name, source = "clip", ""
        if Path(encoder).is_file():
            convert_clip_sf(encoder, new, tokenizer)
        else:
            folder = find_folder(encoder, EXAMPLE, CONFIGS)
            source = str(folder.resolve()) if Path(encoder).is_dir() else pinned_name(encoder, folder)
            name = load_config(folder).model_type
            if name not in ENCODERS:
                raise BadInput(f"{encoder} is a {name!r} model: published quantizers read CLIP or BLIP")
        set_table(new, "encoder", {"name": name, "source": source})
        convert_quantizer(quantizer, new)
        convert_decoder(decoder, new)
        set_table(new, "search", SEARCH)
        Model.load(new)  # raises unless the parts fit together
