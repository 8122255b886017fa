"""Filters such as `price < 50 and not sold`: their grammar, what they mean, and which rows they keep."""
