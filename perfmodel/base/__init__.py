"""Shared by all packages: errors, units, files, tables, and quantities that may be symbols."""
