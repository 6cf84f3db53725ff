"""The measured runs behind the page on accuracy: a list with checksums, checks, and a package."""
