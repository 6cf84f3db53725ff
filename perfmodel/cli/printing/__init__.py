"""Output of commands: tables and lines, no arithmetic."""
