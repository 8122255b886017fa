"""Taking items in: read, checked, encoded, quantized and committed in batches."""
