"""The engine over HTTP: an API, metrics, and one page for people. Needs the extra `serve`."""
