"""Processes that find each other and exchange messages."""
