"""Rueda inside other engines, each in its own environment."""
