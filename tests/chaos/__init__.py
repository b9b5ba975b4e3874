"""Kills, stops and continues ranks at random moments, and looks whether the others go on rightly."""
