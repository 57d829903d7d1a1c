"""What a simulation records, and the files and figures made of it."""
