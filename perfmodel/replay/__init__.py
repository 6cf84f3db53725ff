"""Real SGD with real gradients on the versions of a schedule: accuracy over predicted seconds."""
