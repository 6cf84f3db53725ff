"""How workers train together: one file or folder for each architecture."""
