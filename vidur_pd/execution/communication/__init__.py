"""The price of a collective: run alone on the fabric as it is."""
