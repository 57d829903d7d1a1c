"""What a search leaves: the answer, files, a page, and what to launch."""
