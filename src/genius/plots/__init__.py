"""Pictures of results: curves, maps and grids of codes, as PNG files and one HTML report."""
