"""The decoder: probabilities of codes for a query."""
