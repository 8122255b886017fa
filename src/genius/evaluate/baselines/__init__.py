"""The systems that ours are compared with."""
