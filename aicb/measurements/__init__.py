"""GPUs: nominal peaks, clock law and tables of measured kernel times."""
