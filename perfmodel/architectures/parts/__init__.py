"""Building blocks that architectures share: workers, networks, messages and collectives."""
