"""The second stage: find h whose projection over the action law matches the target."""
