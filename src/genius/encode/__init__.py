"""Encoders: images and texts to vectors of one width."""
