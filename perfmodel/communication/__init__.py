"""Communication of workers: links and paths, messages, groups, collectives and their costs."""
