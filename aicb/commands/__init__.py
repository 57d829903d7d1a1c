"""Commands of ``aicb``, one module each."""
