"""One language for figures and pages, and what draws it: matplotlib for files, Bokeh for HTML."""
