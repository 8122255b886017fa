"""Searches of fixed shape, which a GPU can record once and replay as one CUDA graph.

fixed_trie.py    the trie they read                 steps.py   one step of a beam search: the best children
fixed_lookup.py  the lookup as such a program       replay.py  records a program for each batch size
fixed_decoder.py the decoder's search as one        programs.py  keeps the recorded programs of each trie
passes.py        the decoder's passes in it         operations.py, kernels.py  what they consist of; in Triton
code_vectors.py  products of queries with codes
"""
