"""Answering queries: sub-queries per modality, search over a snapshot, one merged ranking."""
