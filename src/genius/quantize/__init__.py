"""Fusion and residual quantization: embeddings become codes (stage 1)."""
