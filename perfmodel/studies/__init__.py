"""One job in depth: what it assumes, what limits it, what would change it, and reports of it."""
