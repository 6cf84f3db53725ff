"""The architectures, that is, how workers train together: one file or folder for each."""
