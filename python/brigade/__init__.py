"""Brigade: collectives between processes."""
