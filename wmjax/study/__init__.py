"""Studies: a grid of cells becomes a few programs, and one row an episode."""
