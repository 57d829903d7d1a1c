"""Scenarios whose batches were worked out by hand from the rules of Vidur's schedulers."""
