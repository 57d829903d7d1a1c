"""Commands of ``simccl``."""
