import pytest
import torch
from torch.nn import functional as F

from genius.errors import BadInput
from genius.quantize.fusion import Fusion


def parts(n: int = 5, dim: int = 8):
    generator = torch.Generator().manual_seed(3)
    return (torch.randn(n, dim, generator=generator) for _ in range(2))


def test_released_preset_has_the_names_and_sizes_of_the_published_file():
    with torch.device("meta"):
        shapes = {name: tuple(p.shape) for name, p in Fusion(768, "released").named_parameters()}
    assert shapes == {
        "text_projection_layer.weight": (2560, 768),
        "text_projection_layer.bias": (2560,),
        "image_projection_layer.weight": (2560, 768),
        "image_projection_layer.bias": (2560,),
        "combiner_layer.weight": (5120, 5120),
        "combiner_layer.bias": (5120,),
        "output_layer.weight": (768, 5120),
        "output_layer.bias": (768,),
        "dynamic_scalar.0.weight": (5120, 5120),
        "dynamic_scalar.0.bias": (5120,),
        "dynamic_scalar.3.weight": (1, 5120),
        "dynamic_scalar.3.bias": (1,),
    }


def test_the_equation_with_drawn_weights():
    image, text = parts()
    fusion = Fusion(8, "small")
    torch.manual_seed(0)
    for parameter in fusion.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    w = {name: p.detach() for name, p in fusion.named_parameters()}
    hidden = [
        torch.clamp(x @ w[f"{n}_projection_layer.weight"].T + w[f"{n}_projection_layer.bias"], min=0)
        for n, x in (("text", text), ("image", image))
    ]
    both = torch.cat(hidden, dim=1)  # text first
    mlp = torch.clamp(both @ w["combiner_layer.weight"].T + w["combiner_layer.bias"], min=0)
    mlp = mlp @ w["output_layer.weight"].T + w["output_layer.bias"]
    logit = torch.clamp(both @ w["dynamic_scalar.0.weight"].T + w["dynamic_scalar.0.bias"], min=0)
    logit = logit @ w["dynamic_scalar.3.weight"].T + w["dynamic_scalar.3.bias"]
    share = 1 / (1 + torch.exp(-logit))
    h = share * text + (1 - share) * image + mlp
    torch.testing.assert_close(fusion(image, text), h / h.norm(dim=1, keepdim=True))


@pytest.mark.parametrize("preset", ["sum", "small"])
def test_z_starts_as_phi_for_every_combination_of_parts(preset):
    image, text = parts()
    nothing = torch.zeros_like(image)
    fusion = Fusion(8, preset)
    for x, y in ((image, text), (image, nothing), (nothing, text)):
        torch.testing.assert_close(fusion(x, y), F.normalize(x + y, dim=1))


def test_sum_has_no_parameters_and_an_unknown_preset_is_refused():
    assert not list(Fusion(8, "sum").parameters())
    with pytest.raises(BadInput, match="choose one of sum, released, small"):
        Fusion(8, "large")


def test_half_precision_inside_still_gives_unit_float32():
    image, text = parts()
    fusion = Fusion(8, "small")
    torch.nn.init.normal_(fusion.output_layer.weight)
    with torch.autocast("cpu", torch.bfloat16):
        z = fusion(image, text)
    assert z.dtype == torch.float32
    torch.testing.assert_close(z.norm(dim=1), torch.ones(5))
