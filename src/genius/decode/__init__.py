"""The decoder: a T5-style network that gives the probabilities of codes for a query (stage 2)."""
