"""The engine over HTTP: an API, metrics, and a search page. Needs the extra `serve`."""
