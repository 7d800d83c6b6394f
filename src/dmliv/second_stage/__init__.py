"""The second stage: find h whose projection over the action distribution matches the target."""
