"""`mini`, the embedded encoder: its two towers, and how they are trained."""
