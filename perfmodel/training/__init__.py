"""The training that workers do: passes and updates of parameters, and the meaning of ops."""
