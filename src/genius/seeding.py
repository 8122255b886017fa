"""Random numbers as a function of (seed, names, step): a resumed run draws the same without stored state."""

from __future__ import annotations

import hashlib

import torch


def seed_for(seed: int, *keys: int | str) -> int:
    """A seed below 2**63 that depends on `seed` and all `keys`, such as a stage, a step and a rank."""
    digest = hashlib.blake2b(repr((seed, *keys)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def generator_for(device: torch.device | str, seed: int, *keys: int | str) -> torch.Generator:
    """A fresh generator on `device` seeded with `seed_for(seed, *keys)`."""
    return torch.Generator(device).manual_seed(seed_for(seed, *keys))
