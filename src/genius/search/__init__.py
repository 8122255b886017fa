"""Search over stored codes.

options.py   what a caller can choose            plan.py        options resolved into what will run
searcher.py  runs a plan over a pool's segments  segment.py     a trie and which items are visible in it
trie/        the codes of a pool as a trie       codebooks.py   the code vectors, and tables for a query
lookup.py    beam search by tables, in NumPy     decoder.py     beam search by the decoder, or by both
beam.py      the beam search of batches          gpu/           searches of fixed shape, recorded for GPUs
rank.py      re-ranking, the k best, merging     candidates.py  what a search finds in one trie
"""
