"""The pool between store and search: items coming in, stored ones made searchable, answers merged."""
