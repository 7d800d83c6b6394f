"""Networks: encoders, heads, the stacked module and the one training loop."""
