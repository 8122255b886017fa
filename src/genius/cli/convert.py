"""`genius convert`: weights of others into safetensors and folders that genius reads."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from genius.errors import BadInput


class Converter(NamedTuple):
    """A converter: "module:function", called with (source, to) and the options it takes."""

    function: str
    help: str
    takes_tokenizer: bool = False


# A new kind is one function somewhere and one line here.
KINDS: dict[str, Converter] = {
    "clip-sf": Converter(
        "genius.convert.encoders:convert_clip_sf",
        "UniIR's CLIP-SF .pth (OpenAI's CLIP names) to a `clip` folder",
        takes_tokenizer=True,
    ),
    "blip-sf": Converter(
        "genius.convert.blip:convert_blip_sf",
        "a .pth with BLIP's names, such as UniIR's BLIP-SF, to a `blip` folder",
        takes_tokenizer=True,
    ),
    "clip-ff": Converter(
        "genius.convert.uniir:convert_clip_ff",
        "UniIR's CLIP-FF .pth to a `clip-ff` folder",
        takes_tokenizer=True,
    ),
    "blip-ff": Converter(
        "genius.convert.uniir:convert_blip_ff",
        "UniIR's BLIP-FF .pth to a `blip-ff` folder",
        takes_tokenizer=True,
    ),
    "clip-fusion": Converter(
        "genius.convert.encoders:start_clip_fusion", "a CLIP folder to a new `clip-fusion` folder to train"
    ),
    "blip-fusion": Converter(
        "genius.convert.encoders:start_blip_fusion", "a BLIP folder to a new `blip-fusion` folder to train"
    ),
    "quantizer": Converter(
        "genius.convert.quantizer:convert_quantizer", "the authors' quantizer .pth into a model folder"
    ),
    "decoder": Converter(
        "genius.convert.decoder:convert_decoder", "the authors' decoder .pth into a model folder"
    ),
    "weights": Converter(
        "genius.convert.encoders:convert_weights", "any .pth or .bin to model.safetensors, names kept"
    ),
}
WHOLE = "model"  # the one kind that is made of several files
_LIST = "; ".join(f"{name}: {kind.help}" for name, kind in KINDS.items())


def convert(
    kind: Annotated[
        str,
        typer.Argument(
            help=f"What the file is. {_LIST}; {WHOLE}: a whole model, from the files given as options."
        ),
    ],
    to: Annotated[Path, typer.Option(help="Folder to write; it appears whole or not at all.")],
    source: Annotated[
        str | None, typer.Argument(metavar="[FILE]", help="The file (or model folder) to convert.")
    ] = None,
    tokenizer: Annotated[
        str | None, typer.Option(help="Folder or hub id of the tokenizer (default: the published one).")
    ] = None,
    encoder: Annotated[
        str | None, typer.Option(help="model: UniIR's CLIP-SF .pth, or folder or hub name of an encoder.")
    ] = None,
    quantizer: Annotated[str | None, typer.Option(help="model: the authors' quantizer .pth.")] = None,
    decoder: Annotated[str | None, typer.Option(help="model: the authors' decoder .pth.")] = None,
) -> None:
    """Convert published weights to safetensors. Pickled files are read without running any code."""
    parts = {"--encoder": encoder, "--quantizer": quantizer, "--decoder": decoder}
    if kind == WHOLE:
        from genius.convert.model import convert_model

        if source or not (encoder and quantizer and decoder):
            raise BadInput(f"{WHOLE} is made of the files in {', '.join(parts)}: give all three and no other")
        convert_model(encoder, quantizer, decoder, to, tokenizer)
        typer.echo(str(to))
        return
    if kind not in KINDS:
        raise BadInput(f"unknown kind {kind!r}: choose one of {', '.join([*KINDS, WHOLE])}")
    if source is None or any(parts.values()):
        raise BadInput(f"{kind} is made of one file: give it, and leave out {', '.join(parts)}")
    chosen = KINDS[kind]
    if tokenizer and not chosen.takes_tokenizer:
        raise BadInput(f"{kind} takes no --tokenizer: leave it out")
    options = {"tokenizer": tokenizer} if chosen.takes_tokenizer else {}
    module, function = chosen.function.split(":")
    getattr(import_module(module), function)(source, to, **options)
    typer.echo(str(to))
