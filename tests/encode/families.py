"""A tiny random model of each family of dual encoders, with the tokenizer and image processor of the family.

Run by `runpy`: tests are no package.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch

CONTEXT = 16
SIDE = 32
DIM = 24
LETTERS = [*"abcdefghijklmnopqrstuvwxyz", *"ABCDEFGHIJKLMNOPQRSTUVWXYZ", "!"]
TOWER = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
VISION = {**TOWER, "hidden_size": 40, "image_size": SIDE, "patch_size": 8}


def text_config(tokenizer: Any, **more: Any) -> dict[str, Any]:
    marks = {name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    return {**TOWER, **marks, "vocab_size": len(tokenizer), "max_position_embeddings": CONTEXT, **more}


def clip_tokenizer() -> Any:
    from transformers import CLIPTokenizer

    names = [*LETTERS, *(f"{letter}</w>" for letter in LETTERS), "<|startoftext|>", "<|endoftext|>"]
    return CLIPTokenizer(vocab={name: number for number, name in enumerate(names)}, merges=[])


def bert_tokenizer() -> Any:
    from transformers import BertTokenizer

    words = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        "a",
        "red",
        "blue",
        "dog",
        "cat",
        "on",
        "the",
        "mat",
    ]
    return BertTokenizer(vocab={word: number for number, word in enumerate(words)}, model_max_length=CONTEXT)


def xlm_tokenizer() -> Any:
    from transformers import XLMRobertaTokenizer

    marks = ["<s>", "<pad>", "</s>", "<unk>"]
    pieces = [(name, 0.0) for name in marks] + [(name, -3.0) for name in ("▁", *LETTERS)] + [("<mask>", 0.0)]
    return XLMRobertaTokenizer(vocab=pieces, model_max_length=CONTEXT)


def siglip_tokenizer() -> Any:
    """As on the hub: letters after a clean-up, an end mark, padding that is not masked."""
    from tokenizers import Tokenizer, models, normalizers, processors
    from transformers import PreTrainedTokenizerFast

    marks = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "▁"]
    vocabulary = {name: number for number, name in enumerate([*marks, *LETTERS])}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>", fuse_unk=True))
    backend.normalizer = normalizers.Replace(" ", "▁")
    backend.post_processor = processors.TemplateProcessing(single="$A <eos>", special_tokens=[("<eos>", 1)])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="<pad>",
        eos_token="<eos>",
        bos_token="<bos>",
        unk_token="<unk>",
        model_max_length=CONTEXT,
        model_input_names=["input_ids"],
        padding_side="right",
        do_lower_case=True,
    )


def make_clip() -> Any:
    from transformers import CLIPConfig, CLIPModel

    tokenizer = clip_tokenizer()
    text = text_config(tokenizer)
    return CLIPModel(CLIPConfig(text_config=text, vision_config=VISION, projection_dim=DIM)), tokenizer


def make_siglip() -> Any:
    from transformers import SiglipConfig, SiglipModel

    tokenizer = siglip_tokenizer()
    text = text_config(tokenizer, hidden_size=DIM, projection_size=DIM)
    return SiglipModel(
        SiglipConfig(text_config=text, vision_config={**VISION, "hidden_size": DIM})
    ), tokenizer


def make_align() -> Any:
    from transformers import AlignConfig, AlignModel

    tokenizer = bert_tokenizer()
    vision = {
        "image_size": 600,  # as published; the images have another size
        "width_coefficient": 0.5,
        "depth_coefficient": 0.5,
        "kernel_sizes": [3, 3],
        "in_channels": [32, 16],
        "out_channels": [16, 48],
        "strides": [1, 2],
        "num_block_repeats": [1, 1],
        "expand_ratios": [1, 2],
        "hidden_dim": DIM,
    }
    config = AlignConfig(text_config=text_config(tokenizer), vision_config=vision, projection_dim=DIM)
    model = AlignModel(config)
    for parameter in model.vision_model.parameters():
        if parameter.ndim == 4:  # an untrained stack of convolutions lets nothing through
            torch.nn.init.normal_(parameter, std=0.5)
    return model, tokenizer


def make_altclip() -> Any:
    from transformers import AltCLIPConfig, AltCLIPModel

    tokenizer = xlm_tokenizer()
    # positions are counted from behind the padding's: two are never used
    text = text_config(tokenizer, project_dim=28, max_position_embeddings=CONTEXT + 2)
    return AltCLIPModel(AltCLIPConfig(text_config=text, vision_config=VISION, projection_dim=DIM)), tokenizer


def make_chinese_clip() -> Any:
    from transformers import ChineseCLIPConfig, ChineseCLIPModel

    tokenizer = bert_tokenizer()
    config = ChineseCLIPConfig(
        text_config=text_config(tokenizer, bos_token_id=0), vision_config=VISION, projection_dim=DIM
    )
    return ChineseCLIPModel(config), tokenizer


def make_metaclip_2() -> Any:
    from transformers import MetaClip2Config, MetaClip2Model

    tokenizer = xlm_tokenizer()
    text = text_config(tokenizer)
    return MetaClip2Model(
        MetaClip2Config(text_config=text, vision_config=VISION, projection_dim=DIM)
    ), tokenizer


def make_pair_of_models() -> Any:
    from transformers import (
        BertConfig,
        CLIPVisionConfig,
        VisionTextDualEncoderConfig,
        VisionTextDualEncoderModel,
    )

    tokenizer = bert_tokenizer()
    config = VisionTextDualEncoderConfig.from_vision_text_configs(
        CLIPVisionConfig(**VISION), BertConfig(**text_config(tokenizer)), projection_dim=DIM
    )
    return VisionTextDualEncoderModel(config), tokenizer


CROPPED = {"size": {"shortest_edge": SIDE}, "crop_size": {"height": SIDE, "width": SIDE}}
SQUARE = {"size": {"height": SIDE, "width": SIDE}}
CLIP_PIXELS = ("clip", "CLIPImageProcessorPil", CROPPED)
SIGLIP_PIXELS = ("siglip", "SiglipImageProcessorPil", SQUARE)
ALIGN_PIXELS = (
    "efficientnet",
    "EfficientNetImageProcessorPil",
    {
        "size": {"height": 40, "width": 40},
        "crop_size": {"height": 33, "width": 33},
        "do_center_crop": True,
        "do_normalize": False,
        "include_top": False,
        "rescale_factor": 1 / 127.5,
        "rescale_offset": True,
        "resample": 2,
    },
)
CHINESE_PIXELS = (
    "chinese_clip",
    "ChineseCLIPImageProcessorPil",
    {**SQUARE, "do_center_crop": False},
)
# family -> model and tokenizer, image processor, class that the hub names for the tokenizer
FAMILIES: dict[str, tuple[Callable[[], Any], tuple[str, str, dict[str, Any]], str | None]] = {
    "clip": (make_clip, CLIP_PIXELS, None),
    "siglip": (make_siglip, SIGLIP_PIXELS, "SiglipTokenizer"),  # needs sentencepiece: tokenizer.json is read
    "siglip 2": (make_siglip, SIGLIP_PIXELS, "GemmaTokenizer"),  # which ignores do_lower_case
    "align": (make_align, ALIGN_PIXELS, None),
    "altclip": (make_altclip, CLIP_PIXELS, None),
    "chinese-clip": (make_chinese_clip, CHINESE_PIXELS, None),
    "metaclip 2": (make_metaclip_2, CLIP_PIXELS, None),
    "vision-text-dual-encoder": (make_pair_of_models, CLIP_PIXELS, None),
}


def image_processor(family: str) -> Any:
    module, name, settings = FAMILIES[family][1]
    found = import_module(f"transformers.models.{module}.image_processing_pil_{module}")
    return getattr(found, name)(**settings)
