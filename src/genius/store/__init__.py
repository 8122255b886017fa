"""The durable index: SQLite is the truth, arrays are its cache."""
