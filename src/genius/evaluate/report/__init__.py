"""Tables and pages made from the JSON of results, so that a saved file prints like a fresh run."""
