"""Codes fitted to one collection: a model folder inside the index, made anew by `fit`."""
