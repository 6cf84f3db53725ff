"""Rendezvous, connections and messages between the processes of a run."""
