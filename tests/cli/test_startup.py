"""`genius search` begins to answer soon: it loads what the answer needs and nothing else.

Seconds depend on the machine, so they are measured by benchmarks/startup.py; what is loaded is counted here.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from genius.model import MODELS

pytestmark = pytest.mark.skipif(not (MODELS / "mini" / "model.toml").is_file(), reason="no model is shipped")

# torch._dynamo is torch's compiler: a second, drawn in by first values for shapes or by reductions over them
NEEDLESS = {
    "transformers",
    "torch._dynamo",
    "sympy",
    "faiss",
    "fastapi",
    "matplotlib",
    "onnx",
    "genius.config",
    "genius.decode.weights",
}

PROBE = """
import json, sys
from genius import cli
from genius import weights
read, real = [], weights.read_tensors
def noted(file):
    read.append(file.name)
    return real(file)
weights.read_tensors = noted
import genius.encode.mini.encoder
genius.encode.mini.encoder.read_tensors = noted
sys.argv[0] = "genius"
try:
    cli.main()
except SystemExit as ended:
    assert not ended.code, ended.code
print(json.dumps({"read": sorted(read), "modules": sorted(sys.modules)}))
"""


@pytest.fixture(scope="module")
def indexed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small index made by the shipped model."""
    folder = tmp_path_factory.mktemp("startup")
    lines = [{"id": name, "text": f"a photo of a {name}"} for name in ("dog", "cat", "horse", "boat")]
    (folder / "items.jsonl").write_text("\n".join(map(json.dumps, lines)))
    command = [sys.executable, "-m", "genius", "index", "items.jsonl", "--to", "idx"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return folder


def loaded_by(folder: Path, *arguments: str) -> tuple[str, dict[str, list[str]]]:
    """What a search printed, and what it has loaded."""
    command = [sys.executable, "-c", PROBE, "search", *arguments, "--in", "idx", "--format", "jsonl"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    *answers, last = done.stdout.splitlines()
    return json.loads(answers[0])["id"], json.loads(last)


def test_a_search_loads_encoder_and_quantizer_once_and_no_decoder(indexed: Path) -> None:
    best, loaded = loaded_by(indexed, "a dog", "--want", "text")
    assert best == "dog"
    assert loaded["read"] == ["encoder.safetensors", "quantizer.safetensors"]
    assert NEEDLESS.isdisjoint(loaded["modules"])


def test_the_probe_sees_the_decoder_when_it_is_asked_for(indexed: Path) -> None:
    _, loaded = loaded_by(indexed, "a dog", "--want", "text", "--search", "generate")
    assert loaded["read"] == ["decoder.safetensors", "encoder.safetensors", "quantizer.safetensors"]
    assert NEEDLESS.intersection(loaded["modules"]) == {"genius.decode.weights"}
