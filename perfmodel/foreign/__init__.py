"""Code from outside the project: functions of the user, given by name, and optional PyTorch."""
