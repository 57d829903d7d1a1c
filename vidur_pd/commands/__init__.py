"""The command line beyond run: what is printed, checked and written."""
