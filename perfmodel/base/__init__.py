"""What every room uses: errors, units, files, tables, and quantities that may be symbols."""
