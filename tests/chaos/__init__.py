"""Kills, stops and continues ranks at random moments, and checks that the others go on right."""
