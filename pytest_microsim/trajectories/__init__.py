"""Trajectories in and out: open formats that other programs read. Nothing in here knows pytest, unless it says so."""
