"""Errors a user can cause. Each message says what is wrong and what to do."""

from __future__ import annotations


class GeniusError(Exception):
    """Base of all errors that a user can correct; the command line prints it without a traceback."""

    exit_code = 1


class BadInput(GeniusError):
    """A query, item, file or option that cannot be used."""

    exit_code = 2


class BadRecipe(BadInput):
    """A recipe with an unknown key or a wrong value; the message names the key."""


class BadImage(BadInput):
    """An image that cannot be decoded: wrong format, damaged, or too large."""


class MissingImage(BadImage):
    """An image that is not where its item says."""


class BadData(BadInput):
    """A dataset file that does not follow its format; the message names file and line."""


class ModelMismatch(GeniusError):
    """Weights that do not match the model they are loaded into; the message names the keys."""

    exit_code = 3


class ModelNotFound(GeniusError):
    """No model under that name or path."""

    exit_code = 3


class MissingExtra(GeniusError):
    """An optional dependency is needed; the message has the install command."""

    exit_code = 4


class IndexNotFound(GeniusError):
    """No index in that folder."""

    exit_code = 5


class IndexCorrupt(GeniusError):
    """The index is damaged; the message names `genius check --repair`."""

    exit_code = 6


class IndexLocked(GeniusError):
    """Another process is writing to the index; the message says which."""

    exit_code = 7


class IndexMismatch(GeniusError):
    """The index was made by another model or a newer version; the message says what to do."""

    exit_code = 8


class StorageError(GeniusError):
    """The disk is full, read-only or missing; the message names the path."""

    exit_code = 9


class TrainingStopped(GeniusError):
    """Training cannot go on (NaN, collapse); the message has the step and the figure."""

    exit_code = 10


class ClusterError(GeniusError):
    """The cluster cannot be reached or failed; the message says what is safe and what to do."""

    exit_code = 11
