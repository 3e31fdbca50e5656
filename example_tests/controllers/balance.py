"""Balances the cart-pole: pushes towards where the pole falls, and gently back to the middle."""


def act(observation):
    """Return a share of the full force, -1.0 to 1.0."""
    x, speed, angle, rate = observation
    return 0.1 * x + 0.2 * speed + 3.0 * angle + 0.6 * rate
