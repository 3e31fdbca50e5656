"""What controllers share."""

GAIN = 0.25
