"""What commands print: tables and lines, no arithmetic."""
