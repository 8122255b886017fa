"""Fusion and residual quantization: vectors to codes."""
