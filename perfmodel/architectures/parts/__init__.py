"""What architectures share: workers, networks, messages and collectives."""
