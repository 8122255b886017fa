"""The tiny CLIP and BLIP folders of tests/encode, for the converters, too."""

from __future__ import annotations

import runpy
from pathlib import Path

_encode = runpy.run_path(str(Path(__file__).parents[1] / "encode" / "conftest.py"))
quiet_transformers = _encode["quiet_transformers"]
clip_folder = _encode["clip_folder"]
blip_folder = _encode["blip_folder"]
photos = _encode["photos"]
make_clip = _encode["make_clip"]
