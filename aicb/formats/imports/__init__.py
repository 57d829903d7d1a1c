"""Measured kernel times of other projects, turned into tables of this one."""

from aicb.formats.imports.read import import_files
from aicb.formats.imports.rows import Imported, table_paths, write_table

__all__ = ["Imported", "import_files", "table_paths", "write_table"]
