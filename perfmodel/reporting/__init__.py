"""Pages that show results: sections of text, figures and tables, as one HTML file."""
