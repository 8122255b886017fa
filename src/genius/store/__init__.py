"""The durable index: SQLite is the truth, numbered generations of arrays are a cache. Needs no torch."""
